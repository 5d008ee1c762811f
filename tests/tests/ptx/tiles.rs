//! The copy engine, barriers with phases, and products by groups of warps: every layout of a tile against plain products.

use tensorc_ir::DType;
use tensorc_ir::kir::group_acc;
use tensorc_ir::scalar::Scalar;
use tensorc_random::Rng;
use tensorc_tests::ptx::{Argument, Fault, Launch, Module, Swizzle, TensorMap};

use super::words;

/// Where in shared memory the second tile and the barrier lie, and bytes of all.
const SECOND: usize = 8192;
const BARRIER: usize = 24 << 10;
const SHARED: u32 = 25 << 10;

const SWIZZLES: [(Swizzle, u64, usize); 4] =
    [(Swizzle::None, 0, 16), (Swizzle::B32, 3, 32), (Swizzle::B64, 2, 64), (Swizzle::B128, 1, 128)];

/// A tile of rows of terms, or of terms of rows.
#[derive(Clone, Copy)]
struct Tile {
    rows: usize,
    transposed: bool,
    /// Whether elements are f32 rather than bf16.
    single: bool,
    /// The permutation, its number in descriptors and bytes of its rows.
    layout: (Swizzle, u64, usize),
}

impl Tile {
    fn size(&self) -> usize {
        if self.single { 4 } else { 2 }
    }

    fn terms(&self) -> usize {
        32 / self.size()
    }

    fn extents(&self) -> [usize; 2] {
        if self.transposed { [self.rows, self.terms()] } else { [self.terms(), self.rows] }
    }

    fn map(&self, argument: usize) -> TensorMap {
        let [inner, outer] = self.extents();
        TensorMap {
            argument,
            element_bytes: self.size(),
            extents: vec![inner as u64, outer as u64],
            strides: vec![(self.size() * inner) as u64],
            box_extents: vec![(self.layout.2 / self.size()) as u32, outer as u32],
            swizzle: self.layout.0,
            rounds: self.single,
        }
    }

    /// Bytes of a box, and how many lie side by side.
    fn boxes(&self) -> (usize, usize) {
        let [inner, outer] = self.extents();
        (self.layout.2 * outer, (self.size() * inner).div_ceil(self.layout.2))
    }

    /// The offsets of a descriptor, as documented for each layout.
    fn offsets(&self) -> (usize, usize) {
        let (span, whole) = (self.layout.2, self.boxes().0);
        match (self.transposed, self.layout.0) {
            (false, Swizzle::None) => (whole, 128),
            (false, _) => (16, 8 * span),
            (true, Swizzle::None) => (128, whole),
            (true, _) => (whole, 8 * span),
        }
    }

    fn descriptor(&self) -> u64 {
        let (leading, stride) = self.offsets();
        self.layout.1 << 62 | (stride as u64 / 16) << 32 | (leading as u64 / 16) << 16
    }

    /// Copies of all boxes to a place in shared memory.
    fn copies(&self, map: &str, at: usize) -> String {
        let (bytes, count) = self.boxes();
        let copy = |i: usize| {
            format!(
                "mov.b32 %r4, {};\n@%p1 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes \
                 [%r3+{}], [{map}, {{%r4, %r5}}], [%r3+{BARRIER}];\n",
                i * self.layout.2 / self.size(),
                at + i * bytes
            )
        };
        (0..count).map(copy).collect()
    }

    fn bytes(&self) -> usize {
        let (bytes, count) = self.boxes();
        bytes * count
    }

    /// The matrix as it lies in memory, from one by rows.
    fn stored(&self, matrix: &[f32]) -> Vec<u8> {
        let [inner, outer] = self.extents();
        let element = |i: usize| {
            let (a, b) = (i % inner, i / inner);
            let (row, term) = if self.transposed { (a, b) } else { (b, a) };
            let x = Scalar::f32(matrix[row * self.terms() + term]);
            let x = if self.single { x } else { x.cast(DType::BF16) };
            x.bits.to_le_bytes()[..self.size()].to_vec()
        };
        (0..inner * outer).flat_map(element).collect()
    }
}

/// A product of two tiles by one group, added to 0.5.
fn product(a: Tile, b: Tile) -> String {
    let count = b.rows / 2;
    let sums: Vec<String> = (0..count).map(|i| format!("%s{i}")).collect();
    let mut text = format!(
        ".version 8.0\n.target sm_90a\n.address_size 64\n.extern .shared .align 1024 .b8 sh[];\n.visible .entry k(\n\
         .param .u64 x,\n.param .u64 w,\n.param .u64 out,\n.param .align 64 .b8 xs[128],\n.param .align 64 .b8 ws[128]\n)\n\
         .maxntid 128\n{{\n.reg .pred %p<4>;\n.reg .b32 %r<9>;\n.reg .b32 %s<{count}>;\n.reg .b64 %rd<14>;\n\
         ld.param.b64 %rd1, [out];\nmov.b64 %rd2, xs;\ncvta.param.u64 %rd2, %rd2;\nmov.b64 %rd3, ws;\n\
         cvta.param.u64 %rd3, %rd3;\nmov.u32 %r1, %tid.x;\nsetp.eq.u32 %p1, %r1, 0;\nmov.b64 %rd4, sh;\ncvt.u32.u64 %r3, %rd4;\n\
         @%p1 mbarrier.init.shared::cta.b64 [%r3+{BARRIER}], 1;\nfence.mbarrier_init.release.cluster;\nbar.sync 0;\n\
         mov.b32 %r5, 0;\n@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3+{BARRIER}], {};\n",
        a.bytes() + b.bytes()
    );
    text += &a.copies("%rd2", 0);
    text += &b.copies("%rd3", SECOND);
    text += &format!(
        "AGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3+{BARRIER}], 0;\n@!%p2 bra AGAIN;\n\
         shr.u64 %rd5, %rd4, 4;\nadd.s64 %rd6, %rd5, {};\nadd.s64 %rd7, %rd5, {};\nmov.b32 %r6, 1;\nsetp.ne.b32 %p3, %r6, 0;\n",
        a.descriptor(),
        b.descriptor() + SECOND as u64 / 16
    );
    sums.iter().for_each(|sum| text += &format!("mov.b32 {sum}, 0f3F000000;\n"));
    let (ty, turned) = match a.single {
        true => ("k8.f32.tf32.tf32", String::new()),
        false => ("k16.f32.bf16.bf16", format!(", {}, {}", u8::from(a.transposed), u8::from(b.transposed))),
    };
    text += &format!(
        "wgmma.fence.sync.aligned;\n\
         wgmma.mma_async.sync.aligned.m64n{}{ty} {{{}}}, %rd6, %rd7, %p3, 1, 1{turned};\n\
         wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\nmul.wide.u32 %rd8, %r1, {};\nadd.s64 %rd8, %rd8, %rd1;\n",
        b.rows,
        sums.join(", "),
        4 * count
    );
    sums.iter().enumerate().for_each(|(i, sum)| text += &format!("st.global.b32 [%rd8+{}], {sum};\n", 4 * i));
    text + "ret;\n}\n"
}

fn execute(text: &str, tiles: [Tile; 2], operands: [&[f32]; 2], seed: u64) -> Result<Vec<f32>, Fault> {
    let module = Module::parse(text)?;
    let [mut x, mut w] = [0, 1].map(|i| tiles[i].stored(operands[i]));
    let mut out = vec![0; 64 * tiles[1].rows * 4];
    let mut arguments = [
        Argument::Buffer { bytes: &mut x, writable: false },
        Argument::Buffer { bytes: &mut w, writable: false },
        Argument::Buffer { bytes: &mut out, writable: true },
        Argument::Map(tiles[0].map(0)),
        Argument::Map(tiles[1].map(1)),
    ];
    module.launch("k", Launch { blocks: 1, threads: 128, shared_bytes: SHARED, seed }, &mut arguments)?;
    Ok(words(&out).into_iter().map(f32::from_bits).collect())
}

fn numbers(rng: &mut Rng, count: usize) -> Vec<f32> {
    (0..count).map(|_| rng.below(15) as f32 - 7.0).collect()
}

/// Every way to lay out either operand, for as many columns as are in one box or in several.
#[test]
fn products_of_groups_are_plain_products() {
    let mut rng = Rng::new(5);
    for (i, layout) in SWIZZLES.into_iter().enumerate() {
        for (columns, transposed, single) in
            [(8, 0, false), (24, 1, false), (72, 2, false), (128, 3, false), (64, 0, true), (96, 0, true)]
        {
            let tiles = [
                Tile { rows: 64, transposed: transposed & 1 != 0, single, layout },
                Tile {
                    rows: columns,
                    transposed: transposed & 2 != 0,
                    single,
                    layout: SWIZZLES[(i + columns / 8) % 4],
                },
            ];
            let terms = tiles[0].terms();
            let (a, b) = (numbers(&mut rng, 64 * terms), numbers(&mut rng, columns * terms));
            let found = execute(&product(tiles[0], tiles[1]), tiles, [&a, &b], i as u64);
            let found = found.unwrap_or_else(|fault| panic!("{layout:?}, {columns} columns: {fault}"));
            for thread in 0..128 {
                for i in 0..columns / 2 {
                    let (row, column) = group_acc(thread, i);
                    let sum: f32 = (0..terms).map(|k| a[row * terms + k] * b[column * terms + k]).sum();
                    let found = found[thread * columns / 2 + i];
                    assert_eq!(found, sum + 0.5, "{layout:?}, {columns} columns: row {row}, column {column}");
                }
            }
        }
    }
}

/// What is left out or wrong of a product, and words of the error.
#[test]
fn what_products_of_groups_need_is_checked() {
    let tile = |rows| Tile { rows, transposed: false, single: false, layout: SWIZZLES[3] };
    let (tiles, text) = ([tile(64), tile(64)], product(tile(64), tile(64)));
    let operands = [vec![1.0; 64 * 16], vec![1.0; 64 * 16]];
    let operands = [&operands[0][..], &operands[1][..]];
    assert!(execute(&text, tiles, operands, 0).unwrap().iter().all(|sum| *sum == 16.5));
    let wait = "@!%p2 bra AGAIN;\n";
    let again = "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3+24576], 8192;\n".to_owned()
        + &tile(64).copies("%rd2", 0);
    let (commit, product_end) = ("wgmma.commit_group.sync.aligned;\n", "wgmma.wait_group.sync.aligned 0;\n");
    let stored = "st.shared.b32 [%r3+8192], %r1;\nbar.sync 0;\nwgmma.fence.sync.aligned;\n";
    let by_one = stored.replace("st.", "@%p1 st.");
    let fenced = by_one.replace("bar.", "fence.proxy.async.shared::cta;\nbar.");
    let overwriting = format!("{commit}{again}");
    let awaited = format!("{product_end}bar.sync 0;\n{again}");
    let changes: [(&str, &str, &str); 16] = [
        ("fence.mbarrier_init.release.cluster;\n", "", "no fence shows the barrier to the copy engine"),
        ("bar.sync 0;\n", "", "barrier"),
        (wait, "", "a race with a copy or product under way"),
        ("_, [%r3+24576], 16384;", "_, [%r3+24576], 16448;", "threads wait for ever"),
        (
            "_, [%r3+24576], 16384;",
            "_, [%r3+24576], 8192;",
            "the phase of the barrier ends while copies for it are under way",
        ),
        ("[%r3+24576], 1;\nfence", "[%r3+24576], 2;\nfence", "threads wait for ever"),
        ("wgmma.fence.sync.aligned;\n", "", "no fence orders registers before the product"),
        (product_end, "", "sums are used before their product is awaited"),
        (commit, "", "sums are used before their product is awaited"),
        ("wgmma.fence.sync.aligned;\n", stored, "a race with thread"),
        ("wgmma.fence.sync.aligned;\n", &by_one, "without a fence for copies and matrix units"),
        (commit, &overwriting, "a race with a copy or product under way"),
        (
            "shr.u64 %rd5, %rd4, 4;",
            "shr.u64 %rd5, %rd4, 4;\nand.b32 %r7, %r1, 1;\ncvt.u64.u32 %rd9, %r7;\nadd.s64 %rd5, %rd5, %rd9;",
            "not the same for the whole group",
        ),
        ("shr.u64 %rd5, %rd4, 4;", "shr.u64 %rd5, %rd4, 4;\nadd.s64 %rd5, %rd5, 562949953421312;", "base offset 1"),
        ("[%r3+0], [%rd2", "[%r3+64], [%rd2", "no multiple of 128"),
        ("[%r3+0], [%rd2", "[%r3+0], [%rd1", "there is no tensor map"),
    ];
    for (from, to, reason) in changes {
        assert!(text.contains(from), "{from}");
        // A wait may be suspended until what comes has come, so not every order shows that it ends before.
        let outcomes = (0..16).map(|seed| execute(&text.replacen(from, to, 1), tiles, operands, seed));
        let faults: Vec<String> = outcomes.filter_map(|outcome| Some(outcome.err()?.to_string())).collect();
        assert!(faults.len() >= if from == wait { 1 } else { 16 }, "{from} -> {to}");
        assert!(faults.iter().all(|fault| fault.contains(reason)), "{from} -> {to}: {faults:?}");
    }
    // With a fence a thread's element is read; after the product its tile may be fetched again.
    let one = execute(&text.replacen("wgmma.fence.sync.aligned;\n", &fenced, 1), tiles, operands, 1).unwrap();
    assert!(one.iter().any(|sum| *sum != 16.5));
    execute(&text.replacen(product_end, &awaited, 1), tiles, operands, 1).unwrap();
}

/// Boxes of three dimensions that reach beyond the tensor: zeros there. Pieces are permuted as documented, and f32 rounded to the
/// nearest tf32, an even one of two.
#[test]
fn boxes_are_copied_with_zeros_outside_and_permuted() {
    let text = ".version 8.0\n.target sm_90a\n.address_size 64\n.extern .shared .align 1024 .b8 sh[];\n.visible .entry k(\n\
        .param .u64 x,\n.param .u64 out,\n.param .align 64 .b8 map[128],\n.param .u32 c0,\n.param .u32 c1,\n.param .u32 c2\n)\n\
        {\n.reg .pred %p<4>;\n.reg .b32 %r<9>;\n.reg .b64 %rd<14>;\nld.param.b64 %rd1, [out];\nmov.b64 %rd2, map;\n\
        cvta.param.u64 %rd2, %rd2;\nld.param.b32 %r3, [c0];\nld.param.b32 %r4, [c1];\nld.param.b32 %r5, [c2];\n\
        mov.u32 %r1, %tid.x;\nsetp.eq.u32 %p1, %r1, 0;\nmov.b64 %rd4, sh;\n\
        @%p1 mbarrier.init.shared::cta.b64 [%rd4+4096], 1;\nfence.mbarrier_init.release.cluster;\nbar.sync 0;\n\
        @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%rd4+4096], 4096;\n\
        @%p1 cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%rd4], [%rd2, {%r3, %r4, %r5}], [%rd4+4096];\n\
        AGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 %p2, [%rd4+4096], 0;\n@!%p2 bra AGAIN;\nmul.wide.u32 %rd5, %r1, 16;\n\
        add.s64 %rd6, %rd5, %rd4;\nadd.s64 %rd7, %rd5, %rd1;\nld.shared.v4.b32 {%r3, %r4, %r5, %r6}, [%rd6];\n\
        st.global.v4.b32 [%rd7], {%r3, %r4, %r5, %r6};\nret;\n}\n";
    let module = Module::parse(text).unwrap();
    let (extents, at) = ([40u64, 9, 3], [-3i64, 4, 1]);
    let boxed = [32usize, 16, 2];
    for ((swizzle, _, span), rounds) in [(SWIZZLES[0], false), (SWIZZLES[3], false), (SWIZZLES[3], true)] {
        let unit = if rounds { 1 << 11 } else { 1 };
        let map = TensorMap {
            argument: 0,
            element_bytes: 4,
            extents: extents.to_vec(),
            strides: vec![176, 176 * 9],
            box_extents: boxed.map(|n| n as u32).to_vec(),
            swizzle,
            rounds,
        };
        let mut x: Vec<u8> = (0..44 * 9 * 3u32).flat_map(|i| (unit * (i + 1)).to_le_bytes()).collect();
        let mut out = vec![0; 4096];
        let mut arguments = vec![
            Argument::Buffer { bytes: &mut x, writable: false },
            Argument::Buffer { bytes: &mut out, writable: true },
            Argument::Map(map),
        ];
        arguments.extend(at.map(|c| Argument::Number(c as u64)));
        let launch = Launch { blocks: 1, threads: 256, shared_bytes: 4104, seed: 3 };
        module.launch("k", launch, &mut arguments).unwrap_or_else(|fault| panic!("{fault}"));
        let found = words(&out);
        for i in 0..boxed.iter().product() {
            let inside = [i % boxed[0], i / boxed[0] % boxed[1], i / boxed[0] / boxed[1]];
            let c: Vec<i64> = (0..3).map(|d| at[d] + inside[d] as i64).collect();
            let within = (0..3).all(|d| c[d] >= 0 && c[d] < extents[d] as i64);
            let expected = if within { unit * (c[0] + 44 * c[1] + 44 * 9 * c[2] + 1) as u32 } else { 0 };
            let tf32 = |bits: u32| ((f64::from(bits) / 8192.0).round_ties_even() * 8192.0) as u32;
            let expected = if rounds { tf32(expected) } else { expected };
            // Rows of 128 bytes: eight pieces, of which the number is combined with that of the row.
            let (row, piece) = (i / 32, i % 32 / 4);
            let piece = if span == 128 { piece ^ (row % 8) } else { piece };
            assert_eq!(found[row * 32 + piece * 4 + i % 4], expected, "{swizzle:?}: {inside:?}");
        }
    }
}
