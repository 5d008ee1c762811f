//! What Cranelift calls on processors without an instruction: functions of the run-time library.

use cranelift_codegen::ir::LibCall;

/// The name of the function.
pub(super) fn name(call: LibCall) -> String {
    match call {
        LibCall::CeilF32 => "tc_ceil_f32".into(),
        LibCall::CeilF64 => "tc_ceil_f64".into(),
        LibCall::FloorF32 => "tc_floor_f32".into(),
        LibCall::FloorF64 => "tc_floor_f64".into(),
        LibCall::TruncF32 => "tc_trunc_f32".into(),
        LibCall::TruncF64 => "tc_trunc_f64".into(),
        LibCall::NearestF32 => "tc_round_f32".into(),
        LibCall::NearestF64 => "tc_round_f64".into(),
        LibCall::FmaF32 => "tc_fma_f32".into(),
        LibCall::FmaF64 => "tc_fma_f64".into(),
        LibCall::X86Pshufb => "tc_x86_pshufb".into(),
        // Of the C library; kernels have no use for them.
        other => cranelift_module::default_libcall_names()(other),
    }
}

/// The names of those of the run-time library.
pub(crate) fn names() -> impl Iterator<Item = String> {
    LibCall::all_libcalls().iter().map(|call| name(*call)).filter(|name| name.starts_with("tc_"))
}
