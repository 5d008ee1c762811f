//! Products of matrices by warps: against plain products, through `ldmatrix` and by the fragments of KIR.

use tensorc_ir::DType;
use tensorc_ir::kir::{WARP, warp_matrix};
use tensorc_ir::scalar::Scalar;
use tensorc_random::Rng;

use super::{bytes, launch, run, words};

/// Small integers, exact in every format.
fn numbers(rng: &mut Rng, count: usize) -> Vec<f32> {
    (0..count).map(|_| rng.below(15) as f32 - 7.0).collect()
}

fn plain(a: &[f32], b: &[f32], terms: usize) -> Vec<f32> {
    let sum = |row: usize, column: usize| (0..terms).map(|k| a[row * terms + k] * b[k * 8 + column]).sum::<f32>();
    (0..16 * 8).map(|i| sum(i / 8, i % 8)).collect()
}

/// Every element of a matrix in the register, lane and half where it belongs, 32 words for each register.
fn spread(dtype: DType, elements: usize, at: impl Fn(usize, usize) -> usize, matrix: &[f32]) -> Vec<u32> {
    let per_word = 4 / dtype.size();
    let mut registers = vec![0u32; WARP * elements / per_word];
    for lane in 0..WARP {
        for i in 0..elements {
            let bits = Scalar::from_f64(dtype, matrix[at(lane, i)].into()).bits as u32;
            registers[i / per_word * WARP + lane] |= bits << (8 * dtype.size() * (i % per_word));
        }
    }
    registers
}

#[test]
fn products_of_warps_are_plain_products() {
    for (dtype, ty) in [(DType::F16, "f16"), (DType::BF16, "bf16"), (DType::F32, "tf32")] {
        let (in_a, in_b, _) = warp_matrix::elements(dtype);
        let terms = if dtype == DType::F32 { 8 } else { 16 };
        let per_word = 4 / dtype.size();
        let (words_a, words_b) = (in_a / per_word, in_b / per_word);
        let mut rng = Rng::new(3);
        let (a, b) = (numbers(&mut rng, 16 * terms), numbers(&mut rng, terms * 8));
        let place_a = |lane, i| {
            let (row, column) = warp_matrix::a(dtype, lane, i);
            row * terms + column
        };
        let place_b = |lane, i| {
            let (row, column) = warp_matrix::b(dtype, lane, i);
            row * 8 + column
        };
        let input = [spread(dtype, in_a, place_a, &a), spread(dtype, in_b, place_b, &b)].concat();
        let list =
            |from: usize, count: usize| (from..from + count).map(|i| format!("%r{i}")).collect::<Vec<_>>().join(", ");
        let mut body =
            String::from("mul.wide.u32 %rd3, %r1, 4;\nadd.s64 %rd4, %rd1, %rd3;\nadd.s64 %rd5, %rd2, %rd3;\n");
        for i in 0..words_a + words_b {
            body += &format!("ld.global.nc.b32 %r{}, [%rd4+{}];\n", 10 + i, 128 * i);
        }
        body += &format!(
            "mov.b32 %r9, 0f40000000;\nmma.sync.aligned.m16n8k{terms}.row.col.f32.{ty}.{ty}.f32 {{{}}}, {{{}}}, {{{}}}, \
             {{%r9, %r9, %r9, %r9}};\n",
            list(40, 4),
            list(10, words_a),
            list(10 + words_a, words_b)
        );
        (0..4).for_each(|i| body += &format!("st.global.b32 [%rd5+{}], %r{};\n", 128 * i, 40 + i));
        let found = words(&run(&body, launch(1, 32, 1), &bytes(&input, u32::to_le_bytes), 512).unwrap());
        let expected: Vec<f32> = plain(&a, &b, terms).iter().map(|x| x + 2.0).collect();
        for lane in 0..WARP {
            for i in 0..4 {
                let (row, column) = warp_matrix::acc(lane, i);
                assert_eq!(f32::from_bits(found[i * WARP + lane]), expected[row * 8 + column], "{ty}: {row}, {column}");
            }
        }
    }
}

/// Operands as CUDA programs load them: rows of `a`, and rows or columns of `b`, from shared memory.
#[test]
fn matrices_are_loaded_as_products_take_them() {
    let mut rng = Rng::new(8);
    let (a, b) = (numbers(&mut rng, 16 * 16), numbers(&mut rng, 16 * 8));
    let columns: Vec<f32> = (0..8 * 16).map(|i| b[i % 16 * 8 + i / 16]).collect();
    for transposed in [false, true] {
        let half = |x: f32| (Scalar::f32(x).cast(DType::F16).bits as u16).to_le_bytes();
        let input = [bytes(&a, half), bytes(if transposed { &b } else { &columns }, half)].concat();
        // Rows 0 to 15 of `a` stand at 32 t; thread 16 + t has their second half. `b` follows at 512.
        let load_b = if transposed {
            // Rows are terms, of eight elements.
            "and.b32 %r8, %r1, 15;\nmul.wide.u32 %rd6, %r8, 16;\nadd.s64 %rd6, %rd6, %rd4;\n\
             ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%r14, %r15}, [%rd6+512];\n"
        } else {
            // Rows are columns of `b`, sixteen terms long: the first half of eight rows, then the second.
            "and.b32 %r8, %r1, 7;\nmul.wide.u32 %rd6, %r8, 32;\nadd.s64 %rd6, %rd6, %rd4;\nbfe.u32 %r8, %r1, 3, 1;\n\
             mul.wide.u32 %rd7, %r8, 16;\nadd.s64 %rd6, %rd6, %rd7;\n\
             ldmatrix.sync.aligned.m8n8.x2.shared::cta.b16 {%r14, %r15}, [%rd6+512];\n"
        };
        let body = format!(
            "mov.b64 %rd4, sh;\nmul.wide.u32 %rd3, %r1, 8;\nadd.s64 %rd5, %rd1, %rd3;\nadd.s64 %rd6, %rd4, %rd3;\n\
             ld.global.nc.b64 %rd7, [%rd5];\nst.shared.b64 [%rd6], %rd7;\nld.global.nc.b64 %rd7, [%rd5+256];\n\
             st.shared.b64 [%rd6+256], %rd7;\nld.global.nc.b64 %rd7, [%rd5+512];\nst.shared.b64 [%rd6+512], %rd7;\n\
             bar.warp.sync -1;\nand.b32 %r8, %r1, 15;\nmul.wide.u32 %rd6, %r8, 32;\nadd.s64 %rd6, %rd6, %rd4;\n\
             shr.u32 %r8, %r1, 4;\nmul.wide.u32 %rd7, %r8, 16;\nadd.s64 %rd6, %rd6, %rd7;\n\
             ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%r10, %r11, %r12, %r13}}, [%rd6];\n{load_b}mov.b32 %r9, 0f00000000;\n\
             mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {{%r20, %r21, %r22, %r23}}, {{%r10, %r11, %r12, %r13}}, \
             {{%r14, %r15}}, {{%r9, %r9, %r9, %r9}};\n\
             shr.u32 %r8, %r1, 2;\nmul.wide.u32 %rd6, %r8, 32;\nand.b32 %r8, %r1, 3;\nmul.wide.u32 %rd7, %r8, 8;\n\
             add.s64 %rd6, %rd6, %rd7;\nadd.s64 %rd6, %rd6, %rd2;\nst.global.v2.b32 [%rd6], {{%r20, %r21}};\n\
             st.global.v2.b32 [%rd6+256], {{%r22, %r23}};"
        );
        let found = words(&run(&body, launch(1, 32, 6), &input, 512).unwrap());
        let found: Vec<f32> = found.into_iter().map(f32::from_bits).collect();
        assert_eq!(found, plain(&a, &b, 16), "transposed {transposed}");
    }
}
