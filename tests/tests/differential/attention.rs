//! Attention in the forms models have, over random shapes: one library call, and what the interpreter computes.

use tensorc::abi::StepOp;
use tensorc_ir::text::parse_module;
use tensorc_random::Rng;

use super::{COMPILERS, agree, agree_in_parts, lowered};

/// A row of scores `%s` of shape `dims` becomes `%p`.
fn softmax(dims: &str, row: &str, how: &Softmax) -> String {
    let axis = dims.split(',').count() - 1;
    let add = "combine (%a: f32, %b: f32) { %r = add.f32 %a, %b yield %r }";
    let max = "combine (%a: f32, %b: f32) { %r = max.f32 %a, %b yield %r }";
    let (shift, apart) = match how {
        Softmax::Unshifted => (String::new(), "  %t = prim.map(%s) (%a: f32) { %r = mul.f32 %a, 0.5 yield %r }"),
        _ => (
            format!("  %m = prim.reduce(%s) axes [{axis}] keep_dims init [f32 -inf] {{ {max} }} : f32[{row}]\n"),
            "  %t = prim.map(%s, %m) (%a: f32, %b: f32) { %r = sub.f32 %a, %b yield %r }",
        ),
    };
    let sum = format!(
        "{shift}{apart} : f32[{dims}]\n  %e = prim.map(%t) (%a: f32) {{ %r = exp.f32 %a yield %r }} : f32[{dims}]\n  \
         %z = prim.reduce(%e) axes [{axis}] keep_dims init [f32 0.0] {{ {add} }} : f32[{row}]\n"
    );
    let divide = format!("(%a: f32, %b: f32) {{ %r = div.f32 %a, %b yield %r }} : f32[{dims}]");
    match how {
        Softmax::Later => sum + "  %p = relu(%e)\n",
        Softmax::Guarded => {
            sum + &format!("  %d = prim.map(%e, %z) {divide}\n")
                + &format!(
                    "  %p = prim.map(%d) (%a: f32) {{ %n = ne.f32 %a, %a %r = select.f32 %n, 0.0, %a yield %r }} : \
                     f32[{dims}]\n"
                )
        }
        _ => sum + &format!("  %p = prim.map(%e, %z) {divide}\n"),
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Softmax {
    Plain,
    Unshifted,
    Guarded,
    Later,
}

/// Attention over primitives, cut from packed heads or not, with a mask.
fn exported(rng: &mut Rng) -> String {
    let pick = |rng: &mut Rng, from: &[u64]| from[rng.below(from.len() as u64) as usize];
    let (b, h) = (1 + rng.below(3), 1 + rng.below(4));
    let (s, t) = (pick(rng, &[1, 2, 13, 50, 100]), pick(rng, &[1, 3, 40, 129, 150]));
    let (d, w) = (pick(rng, &[1, 5, 8, 33]), pick(rng, &[1, 4, 32, 40]));
    let how = [Softmax::Plain, Softmax::Unshifted, Softmax::Guarded][rng.below(3) as usize];
    let (dims, row) = (format!("{b}, {h}, {s}, {t}"), format!("{b}, {h}, {s}, 1"));
    let packed = rng.one_in(2);
    let given = |n: u64, size: u64| match packed {
        true => format!("f32[{b}, {n}, {}]", h * size),
        false => format!("f32[{b}, {h}, {n}, {size}]"),
    };
    let head = |name: &str, n: u64, size: u64| match packed {
        true => format!("  %{name}h = prim.view(%{name}) [d0, d2, d1 * {size} + d3] : f32[{b}, {h}, {n}, {size}]\n"),
        false => format!("  %{name}h = prim.view(%{name}) [d0, d1, d2, d3] : f32[{b}, {h}, {n}, {size}]\n"),
    };
    let mask = ["1, 1, 1, T", "1, 1, S, T", "B, 1, 1, T", "B, H, S, T", "S, T", "H, 1, T"][rng.below(6) as usize]
        .replace('B', &b.to_string())
        .replace('H', &h.to_string())
        .replace('S', &s.to_string())
        .replace('T', &t.to_string());
    let scored = match rng.below(3) {
        0 => {
            format!("  %s = prim.map(%c, %mask) (%a: f32, %b: f32) {{ %r = add.f32 %a, %b yield %r }} : f32[{dims}]\n")
        }
        1 => format!(
            "  %s = prim.map(%c, %mask) (%a: f32, %b: f32) {{ %i = coord 2 %j = coord 3 %n = ge.i64 %i, %j %z = mul.f32 \
             %a, %b %r = select.f32 %n, %z, -1000.0 yield %r }} : f32[{dims}]\n"
        ),
        _ => format!("  %s = prim.map(%c) (%a: f32) {{ %r = tanh.f32 %a yield %r }} : f32[{dims}]\n"),
    };
    format!(
        "graph @main(%q: {}, %k: {}, %v: {}, %mask: f32[{mask}]) {{\n{}{}{}  \
         %l = prim.map(%qh) (%a: f32) {{ %r = mul.f32 %a, 0.5 yield %r }} : f32[{b}, {h}, {s}, {d}]\n  \
         %c = prim.contract(%l, %kh) over [{b}, {h}, {s}, {t} | {d}] lhs [d0, d1, d2, d4] rhs [d0, d1, d3, d4] : \
         f32[{dims}]\n{scored}{}  \
         %o = prim.contract(%p, %vh) over [{b}, {h}, {s}, {w} | {t}] lhs [d0, d1, d2, d4] rhs [d0, d1, d4, d3] : \
         f32[{b}, {h}, {s}, {w}]\n  %y = prim.view(%o) [d0, d2, d1, d3] : f32[{b}, {s}, {h}, {w}]\n  return %y\n}}\n",
        given(s, d),
        given(t, d),
        given(t, w),
        head("q", s, d),
        head("k", t, d),
        head("v", t, w),
        softmax(&dims, &row, &how),
    )
}

/// The operator, with heads that share keys.
fn grouped(rng: &mut Rng) -> String {
    let (b, kv, group) = (1 + rng.below(2), 1 + rng.below(2), 1 + rng.below(5));
    let (s, t, d) = (1 + rng.below(20), 20 + rng.below(150), 2 + rng.below(30));
    let causal = rng.one_in(2);
    let (q, k, heads) = match rng.one_in(2) {
        true => (
            format!("f32[{b}, {s}, {}]", kv * group * d),
            format!("f32[{b}, {t}, {}]", kv * d),
            format!(", q_num_heads = {}, kv_num_heads = {kv}", kv * group),
        ),
        false => (format!("f32[{b}, {}, {s}, {d}]", kv * group), format!("f32[{b}, {kv}, {t}, {d}]"), String::new()),
    };
    format!(
        "graph @main(%q: {q}, %k: {k}, %v: {k}) {{\n  \
         %y = attention(%q, %k, %v) {{is_causal = {causal}{heads}}}\n  return %y\n}}\n"
    )
}

/// The sum of weights divides the result instead of the weights.
fn divided_later(rng: &mut Rng) -> String {
    let (b, s, t, d) = (1 + rng.below(3), 1 + rng.below(60), 1 + rng.below(200), 1 + rng.below(40));
    let (dims, row) = (format!("{b}, {s}, {t}"), format!("{b}, {s}, 1"));
    format!(
        "graph @main(%q: f32[{b}, {s}, {d}], %k: f32[{b}, {t}, {d}], %v: f32[{b}, {t}, {d}]) {{\n  \
         %s = prim.contract(%q, %k) over [{b}, {s}, {t} | {d}] lhs [d0, d1, d3] rhs [d0, d2, d3] : f32[{dims}]\n{}  \
         %o = prim.contract(%e, %v) over [{b}, {s}, {d} | {t}] lhs [d0, d1, d3] rhs [d0, d3, d2] : f32[{b}, {s}, {d}]\n  \
         %y = prim.map(%o, %z) (%a: f32, %b: f32) {{ %r = div.f32 %a, %b yield %r }} : f32[{b}, {s}, {d}]\n  \
         return %y\n}}\n",
        softmax(&dims, &row, &Softmax::Later).replace("  %p = relu(%e)\n", ""),
    )
}

#[test]
fn every_form_of_attention_is_one_call_that_agrees_with_the_interpreter() {
    let registry = COMPILERS[0].1.registry();
    let mut rng = Rng::new(2026);
    let forms: [fn(&mut Rng) -> String; 4] = [exported, exported, grouped, divided_later];
    for case in 0..32 {
        let text = forms[case % forms.len()](&mut rng);
        let module = parse_module(&text, registry).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let graph = &module.graphs[0];
        let (_, plan) = lowered(graph).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let calls = plan.plan.steps.iter().filter(|s| matches!(s.op, StepOp::Attention { .. })).count();
        assert!(calls == 1, "{calls} calls of attention in {:?}\n{text}", plan.plan.steps);
        agree(graph, case as u64).and_then(|()| agree_in_parts(graph)).unwrap_or_else(|e| panic!("{e}\n{text}"));
    }
}
