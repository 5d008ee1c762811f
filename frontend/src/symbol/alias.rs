//! Second names of MXNet's operators.
//!
//! Files may use any name of an operator; they are written with its first one.

/// (second name, first name), sorted.
const ALIASES: [(&str, &str); 118] = [
    ("ElementWiseSum", "add_n"),
    ("Softmax", "SoftmaxOutput"),
    ("_Div", "elemwise_div"),
    ("_DivScalar", "_div_scalar"),
    ("_Equal", "_equal"),
    ("_EqualScalar", "_equal_scalar"),
    ("_Greater", "_greater"),
    ("_GreaterEqualScalar", "_greater_equal_scalar"),
    ("_GreaterScalar", "_greater_scalar"),
    ("_Greater_Equal", "_greater_equal"),
    ("_Hypot", "_hypot"),
    ("_HypotScalar", "_hypot_scalar"),
    ("_Lesser", "_lesser"),
    ("_LesserEqualScalar", "_lesser_equal_scalar"),
    ("_LesserScalar", "_lesser_scalar"),
    ("_Lesser_Equal", "_lesser_equal"),
    ("_LogicalAndScalar", "_logical_and_scalar"),
    ("_LogicalOrScalar", "_logical_or_scalar"),
    ("_LogicalXorScalar", "_logical_xor_scalar"),
    ("_Logical_And", "_logical_and"),
    ("_Logical_Or", "_logical_or"),
    ("_Logical_Xor", "_logical_xor"),
    ("_Maximum", "_maximum"),
    ("_MaximumScalar", "_maximum_scalar"),
    ("_Minimum", "_minimum"),
    ("_MinimumScalar", "_minimum_scalar"),
    ("_Minus", "elemwise_sub"),
    ("_MinusScalar", "_minus_scalar"),
    ("_Mod", "_mod"),
    ("_ModScalar", "_mod_scalar"),
    ("_Mul", "elemwise_mul"),
    ("_MulScalar", "_mul_scalar"),
    ("_NotEqualScalar", "_not_equal_scalar"),
    ("_Not_Equal", "_not_equal"),
    ("_Plus", "elemwise_add"),
    ("_PlusScalar", "_plus_scalar"),
    ("_Power", "_power"),
    ("_PowerScalar", "_power_scalar"),
    ("_RDivScalar", "_rdiv_scalar"),
    ("_RMinusScalar", "_rminus_scalar"),
    ("_RModScalar", "_rmod_scalar"),
    ("_RPowerScalar", "_rpower_scalar"),
    ("_add", "elemwise_add"),
    ("_contrib_CTCLoss", "CTCLoss"),
    ("_contrib_box_non_maximum_suppression", "_contrib_box_nms"),
    ("_contrib_ctc_loss", "CTCLoss"),
    ("_crop_assign", "_slice_assign"),
    ("_crop_assign_scalar", "_slice_assign_scalar"),
    ("_div", "elemwise_div"),
    ("_minus", "elemwise_sub"),
    ("_mul", "elemwise_mul"),
    ("_plus", "elemwise_add"),
    ("_sub", "elemwise_sub"),
    ("broadcast_axes", "broadcast_axis"),
    ("broadcast_minus", "broadcast_sub"),
    ("broadcast_plus", "broadcast_add"),
    ("cast", "Cast"),
    ("choose_element_0index", "pick"),
    ("concat", "Concat"),
    ("crop", "slice"),
    ("ctc_loss", "CTCLoss"),
    ("cumsum", "_np_cumsum"),
    ("flatten", "Flatten"),
    ("flip", "reverse"),
    ("identity", "_copy"),
    ("linalg_det", "_linalg_det"),
    ("linalg_extractdiag", "_linalg_extractdiag"),
    ("linalg_extracttrian", "_linalg_extracttrian"),
    ("linalg_gelqf", "_linalg_gelqf"),
    ("linalg_gemm", "_linalg_gemm"),
    ("linalg_gemm2", "_linalg_gemm2"),
    ("linalg_inverse", "_linalg_inverse"),
    ("linalg_makediag", "_linalg_makediag"),
    ("linalg_maketrian", "_linalg_maketrian"),
    ("linalg_potrf", "_linalg_potrf"),
    ("linalg_potri", "_linalg_potri"),
    ("linalg_slogdet", "_linalg_slogdet"),
    ("linalg_sumlogdiag", "_linalg_sumlogdiag"),
    ("linalg_syrk", "_linalg_syrk"),
    ("linalg_trmm", "_linalg_trmm"),
    ("linalg_trsm", "_linalg_trsm"),
    ("max_axis", "max"),
    ("min_axis", "min"),
    ("normal", "_random_normal"),
    ("pad", "Pad"),
    ("random_exponential", "_random_exponential"),
    ("random_gamma", "_random_gamma"),
    ("random_generalized_negative_binomial", "_random_generalized_negative_binomial"),
    ("random_negative_binomial", "_random_negative_binomial"),
    ("random_normal", "_random_normal"),
    ("random_pdf_dirichlet", "_random_pdf_dirichlet"),
    ("random_pdf_exponential", "_random_pdf_exponential"),
    ("random_pdf_gamma", "_random_pdf_gamma"),
    ("random_pdf_generalized_negative_binomial", "_random_pdf_generalized_negative_binomial"),
    ("random_pdf_negative_binomial", "_random_pdf_negative_binomial"),
    ("random_pdf_normal", "_random_pdf_normal"),
    ("random_pdf_poisson", "_random_pdf_poisson"),
    ("random_pdf_uniform", "_random_pdf_uniform"),
    ("random_poisson", "_random_poisson"),
    ("random_randint", "_random_randint"),
    ("random_uniform", "_random_uniform"),
    ("ravel_multi_index", "_ravel_multi_index"),
    ("reshape", "Reshape"),
    ("sample_exponential", "_sample_exponential"),
    ("sample_gamma", "_sample_gamma"),
    ("sample_generalized_negative_binomial", "_sample_generalized_negative_binomial"),
    ("sample_multinomial", "_sample_multinomial"),
    ("sample_negative_binomial", "_sample_negative_binomial"),
    ("sample_normal", "_sample_normal"),
    ("sample_poisson", "_sample_poisson"),
    ("sample_uniform", "_sample_uniform"),
    ("shuffle", "_shuffle"),
    ("split", "SliceChannel"),
    ("stop_gradient", "BlockGrad"),
    ("sum_axis", "sum"),
    ("swapaxes", "SwapAxis"),
    ("uniform", "_random_uniform"),
    ("unravel_index", "_unravel_index"),
];

/// Names for sparse arrays stand for the dense operators.
const SPARSE: &str = "_sparse_";

/// The first name of an operator in MXNet; the name itself if it is no alias.
pub fn canonical(name: &str) -> &str {
    let name = name.strip_prefix(SPARSE).unwrap_or(name);
    ALIASES.binary_search_by(|(alias, _)| (*alias).cmp(name)).map_or(name, |i| ALIASES[i].1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aliases_are_sorted_and_lead_to_first_names() {
        assert!(ALIASES.windows(2).all(|w| w[0].0 < w[1].0));
        assert!(ALIASES.iter().all(|(_, name)| canonical(name) == *name));
        assert_eq!(canonical("_Plus"), "elemwise_add");
        assert_eq!(canonical("_sparse_concat"), "Concat");
        assert_eq!(canonical("Convolution"), "Convolution");
    }
}
