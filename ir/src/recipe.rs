//! Recipes: how a cluster is computed on a target.
//!
//! The scheduler decides a recipe once, the cluster stores it, and code generation obeys. A recipe that a program states is
//! used if it computes the cluster, and refused otherwise.

use std::fmt;

/// How a cluster is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Recipe {
    /// Loops over the elements of the result.
    Map,
    /// Loops over the elements of the result in tiles that are transposed in shared memory (GPU).
    Transpose,
    /// Folds along contiguous rows.
    Row,
    /// Folds with a column to each lane or thread.
    Column,
    /// A matrix product of the kernel library, with generated epilogue and prologue.
    Gemm,
    /// A convolution of the kernel library, with generated epilogue and prologue.
    Conv,
    /// A matrix product in tiles of the result of so many rows and columns, by ordinary multiplications (GPU).
    Tiled {
        /// Rows of a tile.
        rows: u64,
        /// Columns of a tile.
        columns: u64,
    },
    /// A matrix product in square tiles of the result, by the matrix units of warps (GPU).
    MatrixUnits {
        /// Rows and columns of a tile.
        side: u64,
    },
    /// A matrix product in tiles of the result of so many columns, by groups of four warps (GPU of capability 9.0a).
    WarpGroups {
        /// Columns of a tile.
        columns: u64,
    },
    /// A matrix product of a vendor library (cuBLASLt), and a kernel for what follows it (GPU).
    VendorGemm,
    /// A convolution of a vendor library (cuDNN), and a kernel for what follows it (GPU).
    VendorConv,
    /// Attention in one kernel that goes through all keys.
    Attention,
    /// Attention by blocks that each take some tiles of the keys, and a kernel that combines their results (GPU).
    SplitAttention {
        /// Tiles of keys that one block takes.
        tiles: u64,
    },
}

impl Recipe {
    /// The name in the text form, without parameters.
    pub const fn name(self) -> &'static str {
        match self {
            Recipe::Map => "map",
            Recipe::Transpose => "transpose",
            Recipe::Row => "row",
            Recipe::Column => "column",
            Recipe::Gemm => "gemm",
            Recipe::Conv => "conv",
            Recipe::Tiled { .. } => "tiled",
            Recipe::MatrixUnits { .. } => "matrix_units",
            Recipe::WarpGroups { .. } => "warp_groups",
            Recipe::VendorGemm => "vendor_gemm",
            Recipe::VendorConv => "vendor_conv",
            Recipe::Attention => "attention",
            Recipe::SplitAttention { .. } => "split_attention",
        }
    }

    /// Whether it computes clusters of a class.
    pub const fn fits(self, class: FusionClass) -> bool {
        match self {
            Recipe::Map | Recipe::Transpose => matches!(class, FusionClass::Map),
            Recipe::Row => matches!(class, FusionClass::Reduce),
            Recipe::Column => matches!(class, FusionClass::Reduce | FusionClass::Contract),
            Recipe::Attention | Recipe::SplitAttention { .. } => matches!(class, FusionClass::Attention),
            Recipe::Gemm
            | Recipe::Conv
            | Recipe::Tiled { .. }
            | Recipe::MatrixUnits { .. }
            | Recipe::WarpGroups { .. }
            | Recipe::VendorGemm
            | Recipe::VendorConv => matches!(class, FusionClass::Contract),
        }
    }

    /// The numbers that stand in parentheses behind the name.
    pub fn parameters(self) -> Vec<u64> {
        match self {
            Recipe::Tiled { rows, columns } => vec![rows, columns],
            Recipe::MatrixUnits { side: n }
            | Recipe::WarpGroups { columns: n }
            | Recipe::SplitAttention { tiles: n } => vec![n],
            _ => vec![],
        }
    }

    /// The recipe of a name and its parameters; `None` if there is none of that name or with that many parameters.
    pub(crate) fn from_parts(name: &str, parameters: &[u64]) -> Option<Recipe> {
        let known = [
            Recipe::Map,
            Recipe::Transpose,
            Recipe::Row,
            Recipe::Column,
            Recipe::Gemm,
            Recipe::Conv,
            Recipe::VendorGemm,
            Recipe::VendorConv,
            Recipe::Attention,
        ];
        match (name, parameters) {
            ("tiled", [rows, columns]) => Some(Recipe::Tiled { rows: *rows, columns: *columns }),
            ("matrix_units", [side]) => Some(Recipe::MatrixUnits { side: *side }),
            ("warp_groups", [columns]) => Some(Recipe::WarpGroups { columns: *columns }),
            ("split_attention", [tiles]) => Some(Recipe::SplitAttention { tiles: *tiles }),
            (name, []) => known.into_iter().find(|recipe| recipe.name() == name),
            _ => None,
        }
    }
}

impl fmt::Display for Recipe {
    /// The text form: `row`, `tiled[128, 64]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        let parameters: Vec<String> = self.parameters().iter().map(u64::to_string).collect();
        if parameters.is_empty() { Ok(()) } else { write!(f, "[{}]", parameters.join(", ")) }
    }
}

tensorc_abi::named! {
    /// What anchors a cluster and so decides which recipes compute it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum FusionClass {
        /// Maps, views and gathers: one loop nest over the output.
        Map = "map",
        /// At least one reduction, with element-wise work before, between and after.
        Reduce = "reduce",
        /// One contraction with element-wise work on its result.
        Contract = "contract",
        /// Two contractions with a softmax of rows between them.
        Attention = "attention",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_parameters_say_all() {
        let all = [
            Recipe::Map,
            Recipe::Transpose,
            Recipe::Row,
            Recipe::Column,
            Recipe::Gemm,
            Recipe::Conv,
            Recipe::Tiled { rows: 16, columns: 128 },
            Recipe::MatrixUnits { side: 64 },
            Recipe::WarpGroups { columns: 256 },
            Recipe::VendorGemm,
            Recipe::VendorConv,
            Recipe::Attention,
            Recipe::SplitAttention { tiles: 4 },
        ];
        for recipe in all {
            assert_eq!(Recipe::from_parts(recipe.name(), &recipe.parameters()), Some(recipe));
        }
        assert_eq!(Recipe::Tiled { rows: 128, columns: 64 }.to_string(), "tiled[128, 64]");
        assert_eq!(Recipe::from_parts("row", &[1]), None);
        assert_eq!(Recipe::from_parts("tiled", &[64]), None);
    }
}
