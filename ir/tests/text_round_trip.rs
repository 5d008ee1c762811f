//! Printing and parsing are inverse, and the parser survives anything.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod compare;

use std::sync::OnceLock;

use tensorc_ir::DType;
use tensorc_ir::TextModule;
use tensorc_ir::op::{Compute, Infer, InputSpec, OpDef, Registry, TypeRule};
use tensorc_ir::params::{ParamKind, ParamSpec, ParamValue};
use tensorc_ir::scalar::{MathFn, MathLibrary, ScalarFn};
use tensorc_ir::text::{
    PrintOptions, parse_module, parse_module_within, print_graph, print_kernel, print_module, print_plan,
};
use tensorc_random::{Rng, each_damaged, random_graph, random_kernel, random_plan};

use compare::{same_graph, same_kernel, same_module};

struct NoMath(ScalarFn);

impl MathLibrary for NoMath {
    fn body(&self, _: MathFn) -> &ScalarFn {
        &self.0
    }
}

fn op(name: &'static str, inputs: &[(&'static str, bool)], outputs: (usize, usize), params: Vec<ParamSpec>) -> OpDef {
    let compute = Compute::Host(Box::new(|_, _| Err("never run".into())));
    OpDef {
        inputs: inputs.iter().map(|&(name, optional)| InputSpec { name, ty: TypeRule::Any, optional }).collect(),
        outputs,
        params,
        ..OpDef::new(name, "", compute, Infer::Derived)
    }
}

fn param(name: &'static str, kind: ParamKind, default: Option<ParamValue>) -> ParamSpec {
    ParamSpec { name, kind, default, required: false, range: None, doc: "" }
}

fn registry() -> &'static Registry {
    static REGISTRY: OnceLock<Registry> = OnceLock::new();
    REGISTRY.get_or_init(|| {
        let every = vec![
            param("axis", ParamKind::Int, Some(ParamValue::Int(-1))),
            param("alpha", ParamKind::Float, Some(ParamValue::Float(0.0))),
            param("flag", ParamKind::Bool, Some(ParamValue::Bool(false))),
            param("mode", ParamKind::Str, None),
            param("to", ParamKind::DType, None),
            param("pads", ParamKind::Ints, None),
            param("scales", ParamKind::Floats, None),
            param("names", ParamKind::Strs, None),
            param("value", ParamKind::Tensor, None),
        ];
        let ops = [
            op("add", &[("a", false), ("b", false)], (1, 1), vec![]),
            op("matmul", &[("a", false), ("b", false)], (1, 1), vec![]),
            op("softplus", &[("x", false)], (1, 1), vec![]),
            op("clip", &[("x", false), ("lo", true), ("hi", true)], (1, 1), vec![]),
            op("split", &[("x", false)], (1, 8), every),
        ];
        Registry::new(ops, Box::new(NoMath(ScalarFn::identity(DType::F32)))).unwrap()
    })
}

fn parse(text: &str) -> TextModule {
    parse_module(text, registry()).unwrap_or_else(|d| panic!("{d}\n{text}"))
}

fn exact(module: &TextModule) -> String {
    print_module(module, &PrintOptions::exact())
}

fn random_module(seed: u64) -> TextModule {
    let mut rng = Rng::new(seed);
    let size = rng.below(14) as usize;
    let dtype = *rng.pick(&[DType::F32, DType::F64, DType::I32, DType::I64]);
    let parallel = rng.one_in(2);
    TextModule {
        name: if rng.one_in(2) { "m".into() } else { String::new() },
        graphs: vec![random_graph(&mut rng, size)],
        kernels: vec![random_kernel(&mut rng, dtype, parallel)],
        plans: vec![random_plan(&mut rng)],
    }
}

#[test]
fn parsing_inverts_printing() {
    for seed in 0..2000 {
        let module = random_module(seed);
        let text = exact(&module);
        let back = parse(&text);
        same_module(&module, &back).unwrap_or_else(|why| panic!("seed {seed}: {why}\n{text}"));
        assert_eq!(exact(&back), text, "seed {seed}");
    }
}

#[test]
fn comparison_tells_programs_apart() {
    let (mut graphs, mut kernels) = (0, 0);
    for seed in 0..200 {
        let (a, b) = (random_module(seed), random_module(seed + 1000));
        graphs += usize::from(same_graph(&a.graphs[0], &b.graphs[0]).is_ok());
        kernels += usize::from(same_kernel(&a.kernels[0], &b.kernels[0]));
    }
    assert_eq!((graphs, kernels), (0, 0));
}

#[test]
fn canonical_text_is_printed_as_it_was_read() {
    for text in [GRAPH, CLUSTERS, KERNEL, PLAN] {
        let module = parse(text);
        assert_eq!(exact(&module), text);
    }
}

const GRAPH: &str = r#"tensorc-ir 1
module @"odd name"

graph @main(%x: f32[?b, 784], %ids: ?[?b, ?0, ?0], %any: ?, %f: f16[*]) {
  %s = split(%x) {alpha = -0.0, flag = true, mode = "a\"b", names = ["p", "q"], pads = [], scales = [1.0, inf], to = bf16, value = i64[1] [-3]} : (f32[?b, 2], f32[*], ?)
  %s#1 = add(%s:1, %s:2) : f32[?b, 2]
  %w = const f32[2, 2] [1.0, -0.0, nan, 0x7fc00001]
  %"a/b:0" = clip(%s#1, _, %w) : ?[3, ?n]
  %zeros = const bool[3] splat(false)
  %big = const u8[17] dense "AAECAwQFBgcICQoLDA0ODxA="
  %empty = const f64[0, 4] []
  return %"a/b:0", y = %s:1, "second y" = %zeros
}
"#;

const CLUSTERS: &str = r#"tensorc-ir 1

graph @g(%x: f32[2, 3], %i: i64[4]) {
  %0 = prim.map(%x, %x) (%x0: f32, %x1: f32) {
    %0 = coord 1
    %1 = cast.f32 %0
    %2 = fma.f32 %x0, %x1, 0.5
    %3 = lt.f32 %1, 0.5
    %4 = select.f32 %3, %2, %1
    yield %4
  } : f32[2, 3]
  %1 = prim.reduce(%0) axes [1] init [f32 -inf, i64 0] {
    map (%x0: f32) {
      %0 = coord 1
      yield %x0, %0
    }
    combine (%x0: f32, %x1: i64, %x2: f32, %x3: i64) {
      %0 = ge.f32 %x0, %x2
      %1 = select.f32 %0, %x0, %x2
      %2 = select.i64 %0, %x1, %x3
      yield %1, %2
    }
    finish (%x0: f32, %x1: i64) {
      yield %x1, %x0
    }
  } : (i64[2], f32[2])
  %2 = prim.view(%1:1) [floordiv(d0, 2) - mod(d1 * 3 + 1, 2)] fill f32 1.0 : f32[4, 2]
  %3 = prim.contract(%2, %0) over [4, 3 | 2] lhs [d0, d2] rhs [d2, d1] : f32[4, 3]
  %4 = prim.gather(%3, %i) axis 0 : f32[4, 3]
  %5 = fused.reduce(%3, %4) @inner (%a: f32[4, 3], %b: f32[4, 3]) {
    %s = prim.map(%a, %b) (%x0: f32, %x1: f32) {
      %0 = add.f32 %x0, %x1
      yield %0
    } : f32[4, 3]
    %sum = prim.reduce(%s) axes [1] keep_dims init [f32 0.0] {
      combine (%x0: f32, %x1: f32) {
        %0 = add.f32 %x0, %x1
        yield %0
      }
    } : f32[4, 1]
    return %sum
  } : f32[4, 1]
  %6 = prim.concat(%4, %5) axis 1 : f32[4, 4]
  %7 = prim.kernel(%6) @twice(%x: f32[16], %y: mut f32[16]) {
    for %i in 0..16 {
      %v = load %x[%i]
      %v1 = mul.f32 %v, 2.0
      store %y[%i], %v1
    }
  } : f32[4, 4]
  return %7
}
"#;

const KERNEL: &str = r#"tensorc-ir 1

kernel @k(%x: f32[1024], %y: mut f32[1024]) scalars(%begin, %end) {
  parallel %t in 0..16 {
    %acc = alloc register f32[4]
    %tmp = alloc stack i64[2]
    for %i in 0..min(%t * 4, 64) by 4 {
      vector %l in 0..4 {
        %at = index %t * 64 + %i + %l - 1
        %c = ge.i64 %at, 0
        %v = load %x[%t * 64 + %i + %l - 1] where %c else 0.0
        %v1 = max.f32 %v, 1e-8
        store %acc[%l], %v1
        store %y[%t * 64 + %i + %l], %v1
      }
    }
    unroll %i in 0..2 {
      store %tmp[%i], -1
      %e = load %tmp[%i]
      %b = eq.i64 %e, %t
      if %b {
        store %y[%t], inf
      } else {
        if true {
          store %y[%t], f64 0.5
        }
      }
    }
  }
}
"#;

const PLAN: &str = r#"tensorc-ir 1

plan @main {
  arena 64 lower_bound 64
  kernel @k0
  weight $w = constant 0 plain
  weight $w#1 = constant 1 gemm_b {k = 4, n = 2, offset = 0, row_stride = 2, col_stride = -1}
  buffer %x: f32[1, 4] = input 0
  buffer %w: f32[4, 2] = weight $w#1
  buffer %h: f32[1, 2] = arena 0
  buffer %y: f32[1, 2] = output 0
  inputs(%x)
  outputs(%y)
  step "a/b" {flops = 16, bytes = 56} gemm(%x, %w, mut %h) {batch = [1, 1, 1], m = 1, n = 2, k = 4, a = [0, 0, 0, 0, 4, 1], b = [0, 0, 0, 0, 2, 1], c = [0, 0, 0, 0, 2, 1], b_packed = 1} epilogue @k0(mut %h)
  step relu {flops = 2, bytes = 16} launch @k0(%h, mut %y) extent 1
  step c {flops = 0, bytes = 16} copy(%h, mut %y)
}
"#;

#[test]
fn deep_nesting_is_refused() {
    for (open, close) in [("for %i in 0..1 {", "}"), ("if true {", "}")] {
        let depth = 50_000;
        let text = format!("kernel @k() {{ {} {} }}", open.repeat(depth), close.repeat(depth));
        assert!(parse_module(&text, registry()).is_err());
    }
    let text = format!("kernel @k(%x: f32[1]) {{ store %x[{}0], 0.0 }}", "(".repeat(100_000));
    let error = parse_module(&text, registry()).unwrap_err().to_string();
    assert!(error.contains("nesting deeper than"), "{error}");
}

#[test]
fn what_a_text_makes_up_has_a_limit() {
    let text = |constants: &str| format!("graph @g() {{ {constants} return }}");
    let parse = |constants: &str, most| parse_module_within(&text(constants), registry(), most).map(drop);
    let (one, two) = ("%a = const f32[256] iota", "%a = const f32[256] splat(1.0) %b = const i8[1] random(3)");
    assert!(parse(one, 1024).is_ok() && parse(two, 1025).is_ok());
    for (constants, ty) in [(one, "f32[256]"), (two, "i8[1]")] {
        let error = parse(constants, 1023 + u64::from(constants == two)).unwrap_err().to_string();
        assert!(error.contains(&format!("a generated constant of type {ty} is too large")), "{error}");
    }
    // A product of extents that has more than 64 bits.
    assert!(parse_module(&text("%a = const f32[4294967296, 4294967296, 4] iota"), registry()).is_err());
    let sum = |terms: u64| (0..terms).map(|i| format!("d{i}")).collect::<Vec<_>>().join(" + ");
    let view = |terms| format!("%x = const f32[1] iota %y = prim.view(%x) [{}] : f32[1]", sum(terms));
    assert!(parse(&view(4096), 4).is_ok());
    let error = parse(&view(200_000), 4).unwrap_err().to_string();
    assert!(error.contains("an index expression of more than 4096 terms"), "{error}");
}

/// Random edits of valid text parse or are refused, never more; what parses prints and parses again.
#[test]
fn mutated_text_never_panics() {
    let written = [GRAPH, CLUSTERS, KERNEL, PLAN].iter().map(|text| text.to_string());
    let corpus: Vec<Vec<u8>> =
        written.chain((0..20).map(|seed| exact(&random_module(seed)))).map(String::into_bytes).collect();
    let counts = each_damaged(&corpus, 25_000, None, |bytes| {
        let Ok(text) = std::str::from_utf8(bytes) else { return false };
        let Ok(module) = parse_module_within(text, registry(), 1 << 20) else { return false };
        let printed = exact(&module);
        same_module(&module, &parse(&printed)).unwrap_or_else(|why| panic!("{why}\n{printed}"));
        true
    });
    assert!(counts.read > 1000, "only {} damaged texts parse: the test says little", counts.read);
}

#[test]
fn single_items_print_as_in_a_file() {
    let module = random_module(5);
    let text = exact(&module);
    assert!(text.contains(&print_graph(&module.graphs[0], &PrintOptions::exact())));
    assert!(text.contains(&print_kernel(&module.kernels[0])));
    assert!(text.contains(&print_plan(&module.plans[0])));
}

/// The specification's example is in the language it specifies.
#[test]
fn the_documented_example_parses() {
    let document = include_str!("../../docs/ir.md");
    let example = document.rsplit("```\n").nth(1).unwrap();
    let module = parse(example);
    assert_eq!((module.name.as_str(), module.graphs.len(), module.kernels.len()), ("mlp", 1, 1));
    assert!(example.ends_with(&print_kernel(&module.kernels[0])));
    tensorc_ir::verify::verify_kernel(&module.kernels[0]).unwrap();
}
