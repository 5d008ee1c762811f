//! Sequences of tokens, and distances.

use crate::prelude::*;
use crate::rules::{one_element, open_rank_in};

pub fn ops() -> Vec<OpDef> {
    vec![cdist(), ngram_repeat_block(), word_conv_embedding(), time_warping(), bifurcation()]
}

fn cdist() -> OpDef {
    let compute = formula(|g, cx| {
        let ([a, b], out) = (g.operands(), &cx.outputs[0]);
        let [left, right] = [0, 1].map(|own| vec![Index::var(own), Index::var(2)]);
        let dims = Extents::of([out.dims.at(0), out.dims.at(1), a.dims()?.at(1)]);
        let difference = a.view(left, None, &dims).widened() - b.view(right, None, &dims).widened();
        let squares = (difference * difference).sum(&[2]).reshape(&out.dims);
        let euclidean = cx.params.str("metric") == Some("euclidean");
        Ok(if euclidean { squares.sqrt() } else { squares }.cast(out.dtype))
    });
    let infer = shape_rule(|cx| {
        let (Some(a), Some(b)) = (open_rank_in(cx, 0, 2..=2)?, open_rank_in(cx, 1, 2..=2)?) else { return Ok(()) };
        cx.unify_dims(a[1], b[1], "operand `B`, axis 1")?;
        cx.set_output_dims(0, [a[0], b[0]])
    });
    define("cdist", "Distances of all rows of A from all rows of B.", compute, infer)
        .groups(&["A", "B"], FLOATS)
        .choice("metric", &["sqeuclidean", "euclidean"], "sqeuclidean", "Σ (a - b)², or its square root")
        .contrib("CDist")
        .ulp(4.0)
}

fn ngram_repeat_block() -> OpDef {
    let compute = formula(|g, cx| {
        let ([ids, scores], n) = (g.operands(), cx.params.int("ngram_size").unwrap_or(1) as u64);
        let (d, out) = (ids.dims()?, &cx.outputs[0]);
        let (batch, length, words) = (d[0], d[1], out.dims[1]);
        if length < n {
            return Ok(scores);
        }
        let starts = length - n + 1;
        // Whether what precedes the last token of each n-gram is what the sequence ends with.
        let equal = (0..n - 1).map(|j| {
            let (gram, tail) = (ids.slice(1, j, starts), ids.slice(1, length + 1 - n + j, 1u64));
            g.map(&[gram, tail], DType::I64, [batch, starts], |_, a| a[0].ne(&a[1]).cast(DType::I64))
        });
        let differences = equal.reduce(|a, b| a + b);
        let last = ids.slice(1, n - 1, starts);
        let none = |x: &Ex| x.lit(-1.0);
        let banned = differences.map_or(last, |differences| {
            last.map_with(&[differences], |_, a| a[1].eq(&a[1].lit(0.0)).select(&a[0], &none(&a[0])))
        });
        let hits = g.map(&[banned.reshape([batch, starts, 1])], DType::I32, [batch, starts, words], |s, a| {
            s.coord(2).eq(&a[0]).cast(DType::I32)
        });
        let hit = hits.reduce("reduce_max", &[1]).reshape([batch, words]);
        Ok(scores.map_with(&[hit], |_, a| a[1].gt(&a[1].lit(0.0)).select(&a[0].lit(f64::NEG_INFINITY), &a[0])))
    });
    let infer = rule(|cx| {
        same(cx, 0, 1)?;
        let n = cx.params.int("ngram_size").unwrap_or(0);
        reject_if(n < 1, || format!("parameter `ngram_size` is {n}"))?;
        let (ids, scores) = (open_rank_in(cx, 0, 2..=2)?, open_rank_in(cx, 1, 2..=2)?);
        match (ids, scores) {
            (Some(ids), Some(scores)) => cx.unify_dims(ids[0], scores[0], "operand `scores`, axis 0"),
            _ => Ok(()),
        }
    });
    define("ngram_repeat_block", "Scores, -∞ for tokens that would repeat an n-gram of the sequence.", compute, infer)
        .operand("input_ids", &[DType::I64])
        .operand("scores", FLOATS)
        .required("ngram_size", ParamKind::Int, "tokens of an n-gram")
        .demand(0, |cx| Ok(Some(Allowed::below(cx.input(1)?.dims.at(1)))))
        .contrib("NGramRepeatBlock")
}

/// The greatest result of windows over a word: one that comes before every result.
const BELOW_ALL: f64 = -1e12;

fn word_conv_embedding() -> OpDef {
    let compute = formula(|g, _| {
        let [words, w, bias, table] = g.operands();
        let (d, wd) = (words.dims()?, w.dims()?);
        let (count, length, filters, width, size) = (d[0], d[1], wd[0], wd[2], wd[3]);
        // A word that begins with 0 is empty.
        let used = words.map_with(&[words.slice(1, 0u64, 1u64)], |_, a| {
            let zero = a[0].lit(0.0);
            let one = a[0].lit(1.0);
            a[1].gt(&zero).select(&a[0].gt(&zero).select(&one, &zero), &zero)
        });
        let lengths = used.sum(&[1]);
        let chars = g.map(&[words, lengths], words.ty()?.dtype, [count, length], |s, a| {
            let reach = a[1].max(&a[1].lit(width as f64));
            s.coord(1).cast(a[0].dtype()).lt(&reach).select(&a[0], &a[0].lit(0.0))
        });
        let embedded = table.gather(chars, 0).reshape([count, 1, length, size]);
        let rows = g.op("conv", &[embedded, w, bias], Params::new()).reshape([count, filters, length - width + 1]);
        let active = rows.call("tanh", &[]);
        let lengths = lengths.reshape([count, 1, 1]);
        let shown = active.map_with(&[lengths], |s, a| {
            let windows = a[1].max(&a[1].lit(width as f64)) - a[1].lit(width as f64 - 1.0);
            s.coord(2).cast(a[1].dtype()).lt(&windows).select(&a[0], &a[0].lit(BELOW_ALL))
        });
        let best = shown.reduce("reduce_max", &[2]).reshape([count, filters]);
        Ok(best.map_with(&[lengths.reshape([count, 1])], |_, a| a[1].gt(&a[1].lit(0.0)).select(&a[0], &a[0].lit(0.0))))
    });
    let infer = rule(|cx| {
        cx.same_dtype(0, 1)?;
        let (Some(words), Some(w)) = (open_rank_in(cx, 0, 2..=2)?, open_rank_in(cx, 1, 4..=4)?) else { return Ok(()) };
        cx.unify_dims(Dim::Const(1), w[1], "operand `W`, axis 1")?;
        if let (Some(length), Some(width)) = (words[1].as_const(), w[2].as_const()) {
            reject_if(width > length, || format!("operand `W`, axis 2: {width} characters of words of {length}"))?;
        }
        for (name, axis) in [("embedding_size", 0), ("conv_window_size", 2), ("char_embedding_size", 3)] {
            if let Some(n) = cx.params.int(name).filter(|n| *n > 0) {
                cx.unify_dims(Dim::Const(n as u64), w[axis], &format!("operand `W`, axis {axis}"))?;
            }
        }
        shaped(cx, 2, &[w[0]])?;
        if let Some(table) = open_rank_in(cx, 3, 2..=2)? {
            cx.unify_dims(w[3], table[1], "operand `C`, axis 1")?;
        }
        cx.set_output_dims(0, [words[0], w[0]])
    });
    let doc = "Words as vectors: the greatest of tanh of a convolution over the embeddings of their characters.";
    define("word_conv_embedding", doc, compute, infer)
        .operand("Sequence", &[DType::I32])
        .groups(&["W", "B", "C"], FLOATS)
        .maybe("char_embedding_size", ParamKind::Int, "must be that of C")
        .maybe("conv_window_size", ParamKind::Int, "must be that of W")
        .maybe("embedding_size", ParamKind::Int, "must be that of W")
        .demand(0, |cx| Ok(Some(Allowed::below(cx.input(3)?.dims.at(0)))))
        .contrib("WordConvEmbedding")
        .ulp(16.0)
}

/// An operand that the host reads.
fn given(args: &[Option<TensorData>], i: usize) -> Result<&TensorData, OpError> {
    args.get(i).and_then(Option::as_ref).ok_or_else(|| OpError(format!("operand {i} is missing")))
}

/// The cheapest path from the first to the last element of a matrix of costs, by rows and columns.
fn cheapest_path(costs: &[f32], rows: usize, columns: usize) -> [Vec<i32>; 2] {
    let wide = columns + 1;
    let mut total = vec![f32::INFINITY; (rows + 1) * wide];
    let mut steps = vec![[0, 1]; (rows + 1) * wide];
    total[0] = 0.0;
    for row in 1..=rows {
        for column in 1..=columns {
            let at = row * wide + column;
            let (both, above, before) = (total[at - wide - 1], total[at - wide], total[at - 1]);
            let (least, step) = match () {
                () if both < above && both < before => (both, [1, 1]),
                () if above < both && above < before => (above, [1, 0]),
                () => (before, [0, 1]),
            };
            (total[at], steps[at]) = (least + costs[(row - 1) * columns + column - 1], step);
        }
    }
    let (mut row, mut column, mut path) = (rows, columns, [vec![], vec![]]);
    while row > 0 && column > 0 {
        path[0].push(row as i32 - 1);
        path[1].push(column as i32 - 1);
        let [down, right] = steps[row * wide + column];
        (row, column) = (row - down, column - right);
    }
    path.iter_mut().for_each(|line| line.reverse());
    path
}

fn time_warping() -> OpDef {
    let compute = host(|_, args| {
        let costs = given(args, 0)?;
        let (rows, columns) = match *costs.dims() {
            [rows, columns] | [1, rows, columns] => (rows as usize, columns as usize),
            ref other => return Err(OpError(format!("operand `input`: expected a matrix, found {other:?}"))),
        };
        let values: Vec<f32> = costs.iter().map(|x| x.as_f32()).collect();
        let path = cheapest_path(&values, rows, columns);
        let length = path[0].len() as u64;
        let bytes: Vec<u8> = path.iter().flatten().flat_map(|at| at.to_le_bytes()).collect();
        let made = TensorData::new(DenseType::new(DType::I32, [2, length]), bytes.into());
        Ok(vec![made.ok_or("the path does not fill its shape")?])
    });
    let infer = rule(|cx| {
        cx.set_output_dtype(0, DType::I32)?;
        if let Some(dims) = open_rank_in(cx, 0, 2..=3)?
            && dims.len() == 3
        {
            cx.unify_dims(Dim::Const(1), dims[0], "operand `input`, axis 0")?;
        }
        partial(cx, 0, &[Some(Dim::Const(2)), None])
    });
    define("dynamic_time_warping", "The cheapest path through a matrix of costs, as rows and columns.", compute, infer)
        .operand("input", &[DType::F32])
        .contrib("DynamicTimeWarping")
}

/// What follows the n-gram of `source` that `tokens` end with, for the longest n-gram that `source` has; -1 if there is
/// none, or several.
fn suffix_match(source: &[i64], tokens: &[i64], sizes: std::ops::RangeInclusive<usize>) -> i64 {
    let mut found = -1;
    for n in sizes {
        let Some(tail) = tokens.len().checked_sub(n).map(|at| &tokens[at..]) else { break };
        let mut places = (0..source.len()).filter(|at| source[*at..].starts_with(tail));
        let Some(first) = places.next() else { break };
        found = (first + n) as i64;
        if found >= source.len() as i64 {
            break;
        }
        if places.next().is_some() {
            found = -1;
        }
    }
    found
}

fn bifurcation() -> OpDef {
    let compute = host(|cx, args| {
        let all = |i: usize| {
            let tokens = given(args, i)?;
            let rank = tokens.dims().len();
            reject_if(rank != 1, || format!("operand {i}: expected rank 1, found rank {rank}"))?;
            Ok::<Vec<i64>, OpError>(tokens.iter().map(|x| x.as_i64()).collect())
        };
        let (source, mut tokens) = (all(0)?, all(1)?);
        let previous = given(args, 2)?.item().map(|n| n.as_i64());
        let previous = previous.ok_or("operand `prev_suffix_match_idx`: expected one element")?;
        if args.get(3).is_some_and(Option::is_some) {
            let predicted = all(3)?;
            let start = usize::try_from(previous).ok().filter(|at| *at <= source.len());
            let start = start.ok_or_else(|| OpError(format!("operand `prev_suffix_match_idx` is {previous}")))?;
            let expected = source.len() + 1 - start;
            if predicted.len() != expected {
                let found = predicted.len();
                return Err(OpError(format!("operand `pred_tokens`: expected {expected} elements, found {found}")));
            }
            let agreed = source[start..].iter().zip(&predicted).take_while(|(a, b)| a == b).count();
            tokens.extend(&predicted[..(agreed + 1).min(predicted.len())]);
        }
        let [least, most] = ["min_ngram_size", "max_ngram_size"].map(|n| cx.params.int(n).unwrap_or(1).max(1) as usize);
        let found = suffix_match(&source, &tokens, least..=most);
        let bytes: Vec<u8> = tokens.iter().flat_map(|t| t.to_le_bytes()).collect();
        let made = TensorData::new(DenseType::new(DType::I64, [tokens.len() as u64]), bytes.into());
        let shape = given(args, 2)?.dims();
        let place = TensorData::new(DenseType::new(DType::I64, shape), found.to_le_bytes().to_vec().into());
        let results = made.zip(place).ok_or("a result does not fill its shape")?;
        Ok(vec![results.0, results.1])
    });
    let infer = rule(|cx| {
        cx.set_output_dtype(0, DType::I64)?;
        [0, 1, 3].into_iter().try_for_each(|i| open_rank_in(cx, i, 1..=1).map(drop))?;
        partial(cx, 0, &[None])?;
        if cx.output_count() > 1 {
            cx.set_output_dtype(1, DType::I64)?;
            one_element(cx, 2)?;
            cx.copy_shape(1, 2)?;
        }
        Ok(())
    });
    let doc = "Predicted tokens as far as they are those of the source, and one more, behind current ones; and what follows \
               the end of those in the source.";
    define("bifurcation_detector", doc, compute, infer)
        .operands(&["src_tokens", "cur_tokens", "prev_suffix_match_idx"], &[DType::I64])
        .optional("pred_tokens", TypeRule::OneOf(&[DType::I64]))
        .outputs(2, 2)
        .param("min_ngram_size", 1, "tokens of the shortest n-gram")
        .param("max_ngram_size", 3, "tokens of the longest n-gram")
        .contrib("BifurcationDetector")
}
