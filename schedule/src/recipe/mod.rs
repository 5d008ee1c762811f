//! How a cluster is computed: the one place that decides it.
//!
//! [`decide`] tries the recipes of a cluster's class from the fastest to the one that computes every cluster, or only the one that the
//! cluster states. [`library`] has the calls of the kernel library, [`vendor`] those of vendor libraries; [`fold`], [`transpose`],
//! [`tiles`] and [`warp_groups`] say which generated kernels compute a cluster.

mod fold;
mod library;
pub mod tiles;
mod transpose;
mod vendor;
pub mod warp_groups;

use std::mem::discriminant;
use std::sync::Arc;

use tensorc_abi::vendor::VendorContraction;
use tensorc_abi::{Attention, DType};
use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};
use tensorc_ir::graph::{FusedCluster, FusionClass, Graph, NodeId, NodeKind};
use tensorc_ir::recipe::Recipe;

use crate::access::Located;
use crate::access::product::MatrixProduct;
use crate::flash::{FlashTile, KeySplits};
use crate::layout::Layouts;
use crate::recognise::attention::{Attended, attention_of};
use crate::target::Target;
use crate::target::{Gpu, Processor, VendorLibraries};
use library::library_form;

pub use library::{Library, contraction, split_final_view, sums_apart};
pub use transpose::Transposed;
pub use vendor::Vendor;

/// Most terms of a score, and most columns of the values, of attention on a GPU: registers limit both.
const MAX_ATTENTION_WIDTH: u64 = 256;

/// The recipe of a cluster, with what is known of its body.
#[derive(Clone, Debug)]
pub enum Form {
    /// One generated kernel.
    Generated(Generated),
    /// A call of the kernel library.
    Library(Box<Library>),
    /// Attention by the kernel library.
    LibraryAttention(Arc<Attended>),
    /// A call of a vendor library, and perhaps a generated kernel for what follows.
    Vendor(Box<Vendor>),
    /// Attention in two generated kernels: parts of the keys, and their combination.
    SplitAttention(Arc<Attended>, KeySplits),
}

/// The recipe of one generated kernel.
#[derive(Clone, Debug)]
pub enum Generated {
    /// One loop nest over the elements.
    Map,
    /// Tiles that are transposed in fast memory.
    Transpose(Transposed),
    /// Row by row, with the folds of each row.
    Row,
    /// Folds over outer axes, column by column.
    Column,
    /// Tiles of so many rows and columns.
    Tiled(Box<MatrixProduct>, [u64; 2]),
    /// Square tiles.
    MatrixUnits(Box<MatrixProduct>, u64),
    /// Matrix units of whole groups of warps.
    WarpGroups(Box<WarpGroups>),
    /// Attention in one kernel.
    Attention(Arc<Attended>),
}

/// A product by groups of warps.
#[derive(Clone, Debug)]
pub struct WarpGroups {
    /// With one group of axes each of rows and columns.
    pub product: MatrixProduct,
    /// Where both operands come from.
    pub sources: [warp_groups::MatrixSource; 2],
    /// Columns of a tile of the result.
    pub columns: u64,
}

impl Form {
    /// The recipe as clusters state it.
    pub fn recipe(&self) -> Recipe {
        match self {
            Form::Generated(generated) => generated.recipe(),
            Form::Library(library) => match **library {
                Library::Gemm { .. } => Recipe::Gemm,
                Library::Conv { .. } => Recipe::Conv,
            },
            Form::LibraryAttention(_) => Recipe::Attention,
            Form::Vendor(vendor) => match vendor.call.contraction {
                VendorContraction::Product { .. } => Recipe::VendorGemm,
                VendorContraction::Convolution(_) => Recipe::VendorConv,
            },
            Form::SplitAttention(_, parts) => Recipe::SplitAttention { tiles: parts.each.fixed().max(1) as u64 },
        }
    }
}

impl Generated {
    fn recipe(&self) -> Recipe {
        match self {
            Generated::Map => Recipe::Map,
            Generated::Transpose(_) => Recipe::Transpose,
            Generated::Row => Recipe::Row,
            Generated::Column => Recipe::Column,
            Generated::Tiled(_, [rows, columns]) => Recipe::Tiled { rows: *rows, columns: *columns },
            Generated::MatrixUnits(_, side) => Recipe::MatrixUnits { side: *side },
            Generated::WarpGroups(groups) => Recipe::WarpGroups { columns: groups.columns },
            Generated::Attention(_) => Recipe::Attention,
        }
    }
}

/// A cluster whose recipe is to be decided.
pub struct Site<'a> {
    cluster: Located<'a>,
    class: FusionClass,
    /// The recipe that it states.
    stated: Option<Recipe>,
    /// The graph that it is part of, and its node there.
    owner: Option<(&'a Graph, NodeId)>,
}

impl<'a> Site<'a> {
    /// A cluster of a graph.
    pub fn of(graph: &'a Graph, node: NodeId, fused: &'a FusedCluster, layouts: &'a Layouts) -> Site<'a> {
        let cluster = Located { body: &fused.body, layouts };
        Site { cluster, class: fused.class, stated: fused.recipe, owner: Some((graph, node)) }
    }

    /// An element-wise cluster of no graph.
    pub fn map(cluster: Located<'a>) -> Site<'a> {
        Site { cluster, class: FusionClass::Map, stated: None, owner: None }
    }
}

/// Decides how a cluster is computed.
///
/// # Errors
/// [`DiagnosticCode::Unsupported`]: the stated recipe does not compute the cluster on the target, or no recipe does. A type is not known.
pub fn decide(site: &Site<'_>, target: &Target) -> Result<Form> {
    let found = match (site.class, target.processor) {
        (FusionClass::Map, Processor::Cpu(_)) => site.loops(Recipe::Map),
        (FusionClass::Map, Processor::Gpu(_)) => site.map_on_gpu()?,
        (FusionClass::Reduce, Processor::Cpu(_)) => site.fold(fold::has_rows)?,
        (FusionClass::Reduce, Processor::Gpu(_)) => site.fold(fold::has_warp_rows)?,
        (FusionClass::Contract, Processor::Cpu(_)) => match site.library()? {
            Some(library) => Some(Form::Library(Box::new(library))),
            None => site.loops(Recipe::Column),
        },
        (FusionClass::Contract, Processor::Gpu(gpu)) => site.product(target, &gpu)?,
        (FusionClass::Attention, Processor::Cpu(_)) => site.library_attention(target)?,
        (FusionClass::Attention, Processor::Gpu(gpu)) => site.flash_attention(target, &gpu)?,
    };
    found.ok_or_else(|| {
        let target = if target.is_gpu() { "a GPU" } else { "a processor" };
        let why = match site.stated {
            Some(recipe) => format!("the recipe `{recipe}` does not compute this cluster on {target}"),
            None => format!("no recipe computes this {} cluster on {target}", site.class.name()),
        };
        Diagnostic::new(DiagnosticCode::Unsupported, why)
    })
}

/// Whether one kernel computes attention on a target: the library's of f32 on a processor, a generated one on a GPU.
pub fn computes_attention(target: &Target, found: &Attended) -> bool {
    let single = found.dtype == DType::F32;
    let Attention { depth, size, shifted, .. } = found.call;
    match target.processor {
        Processor::Cpu(_) => single,
        // Weights that are not relative to the largest one may be too large for f16.
        Processor::Gpu(_) => depth.greatest(size) <= MAX_ATTENTION_WIDTH && (single || shifted),
    }
}

/// The library call of a cluster of a graph, with operands and result dense, if it is one. Vendor libraries, and matrix
/// units that read f32, take operands as library calls do, so for a GPU that has them it is the call that they would
/// compute, whatever recipe is stated.
///
/// # Errors
/// A type is not known.
pub(crate) fn library_of(graph: &Graph, node: NodeId, target: &Target) -> Result<Option<Library>> {
    let NodeKind::Fused(fused) = &graph.node(node).kind else { return Ok(None) };
    if fused.class != FusionClass::Contract {
        return Ok(None);
    }
    let dense = Layouts::default();
    let site = Site::of(graph, node, fused, &dense);
    match target.processor {
        Processor::Cpu(_) => site.library(),
        Processor::Gpu(gpu) if gpu.libraries != VendorLibraries::default() || target.tf32 => {
            Site { stated: None, ..site }.library()
        }
        Processor::Gpu(_) => Ok(None),
    }
}

impl Site<'_> {
    /// Whether the recipe may be one, whatever its parameters: it is what the cluster states, or the cluster states none.
    fn allows(&self, recipe: Recipe) -> bool {
        self.stated.is_none_or(|stated| discriminant(&stated) == discriminant(&recipe))
    }

    /// Whether the filters of a call can be packed where it needs packed ones (NCHW16c and Winograd): they are constants.
    fn packs(&self, library: &Library) -> bool {
        match (library, self.owner) {
            (Library::Conv { conv, b, .. }, Some((graph, node))) if !conv.in_planes() || conv.pass.is_packed() => {
                graph.constant(graph.args(node)[*b]).is_some()
            }
            _ => true,
        }
    }

    /// Loops that need no knowledge of the body.
    fn loops(&self, recipe: Recipe) -> Option<Form> {
        let generated = match recipe {
            Recipe::Map => Generated::Map,
            Recipe::Row => Generated::Row,
            _ => Generated::Column,
        };
        self.allows(recipe).then_some(Form::Generated(generated))
    }

    fn map_on_gpu(&self) -> Result<Option<Form>> {
        if self.allows(Recipe::Transpose)
            && let Some(transposed) = Transposed::of(&self.cluster)?
        {
            return Ok(Some(Form::Generated(Generated::Transpose(transposed))));
        }
        Ok(self.loops(Recipe::Map))
    }

    fn fold(&self, has_rows: fn(&Located<'_>) -> Result<bool>) -> Result<Option<Form>> {
        match self.allows(Recipe::Row) && has_rows(&self.cluster)? {
            true => Ok(self.loops(Recipe::Row)),
            false => Ok(self.loops(Recipe::Column)),
        }
    }

    fn library(&self) -> Result<Option<Library>> {
        let Located { body, layouts } = self.cluster;
        let allowed = |library: &Library| match library {
            Library::Gemm { .. } => self.allows(Recipe::Gemm),
            Library::Conv { .. } => self.allows(Recipe::Conv),
        };
        let found = library_form(body)?.filter(|library| allowed(library) && self.packs(library));
        found.map(|library| library.located(layouts)).transpose()
    }

    fn product(&self, target: &Target, gpu: &Gpu) -> Result<Option<Form>> {
        let VendorLibraries { products, convolutions } = gpu.libraries;
        let libraries = VendorLibraries {
            products: products && self.allows(Recipe::VendorGemm),
            convolutions: convolutions && self.allows(Recipe::VendorConv),
        };
        if let Some(vendor) = vendor::vendor(&self.cluster, libraries, target.tf32)? {
            return Ok(Some(Form::Vendor(Box::new(vendor))));
        }
        let Some(product) = MatrixProduct::of(&self.cluster)?.filter(|product| product.terms() > 0) else {
            return Ok(self.loops(Recipe::Column));
        };
        // Columns cannot store in another order.
        let moved = product.is_moved(&self.cluster);
        let results = product.rows() * product.columns();
        // Both add terms in one order. An open extent may be large.
        if !results.is_open() && results < tiles::MIN_RESULTS && !moved {
            return Ok(self.loops(Recipe::Column));
        }
        if let Some(groups) = self.warp_groups(&product, target, gpu)? {
            return Ok(Some(Form::Generated(groups)));
        }
        if self.allows(Recipe::MatrixUnits { side: 0 })
            && tiles::fits_matrix_units(&self.cluster, &product, target.tf32)?
        {
            let side = match self.stated {
                Some(Recipe::MatrixUnits { side }) => Some(side).filter(|side| tiles::UNIT_SIDES.contains(side)),
                _ => Some(tiles::unit_side(&product)),
            };
            return Ok(side.map(|side| Form::Generated(Generated::MatrixUnits(Box::new(product), side))));
        }
        let tile = match self.stated {
            None => Some(tiles::ordinary(&product)),
            Some(Recipe::Tiled { rows, columns }) => {
                Some([rows, columns]).filter(|tile| tile.iter().all(|side| tiles::SIDES.contains(side)))
            }
            Some(_) if moved => None,
            Some(_) => return Ok(self.loops(Recipe::Column)),
        };
        Ok(tile.map(|tile| Form::Generated(Generated::Tiled(Box::new(product), tile))))
    }

    fn warp_groups(&self, product: &MatrixProduct, target: &Target, gpu: &Gpu) -> Result<Option<Generated>> {
        if !gpu.has_warp_groups() || !self.allows(Recipe::WarpGroups { columns: 0 }) {
            return Ok(None);
        }
        let product = warp_groups::batched(product.clone());
        let Some(sources) = warp_groups::sources(&self.cluster, &product, target.tf32)? else { return Ok(None) };
        let columns = match self.stated {
            Some(Recipe::WarpGroups { columns }) => columns,
            _ => warp_groups::columns(&product, gpu),
        };
        let groups = WarpGroups { product, sources, columns };
        Ok(warp_groups::COLUMNS.contains(&columns).then(|| Generated::WarpGroups(Box::new(groups))))
    }

    fn attention(&self) -> Result<Attended> {
        let why = "an attention cluster holds two products around a softmax of rows, and nothing else";
        attention_of(self.cluster.body).ok_or_else(|| Diagnostic::new(DiagnosticCode::Verify, why))
    }

    fn library_attention(&self, target: &Target) -> Result<Option<Form>> {
        let found = self.attention()?;
        let fits = computes_attention(target, &found) && self.allows(Recipe::Attention);
        Ok(fits.then(|| Form::LibraryAttention(Arc::new(found))))
    }

    fn flash_attention(&self, target: &Target, gpu: &Gpu) -> Result<Option<Form>> {
        let found = self.attention()?;
        if !computes_attention(target, &found) {
            return Ok(None);
        }
        let parts = KeySplits::busy(&found.call, FlashTile::of(&found, target), gpu);
        let parts = match self.stated {
            Some(Recipe::SplitAttention { tiles }) => KeySplits { each: tiles.max(1).into(), ..parts },
            Some(_) => KeySplits { each: parts.tiles, ..parts },
            None => parts,
        };
        let found = Arc::new(found);
        Ok(match parts.count() {
            1 => self.allows(Recipe::Attention).then_some(Form::Generated(Generated::Attention(found))),
            _ => Some(Form::SplitAttention(found, parts)),
        })
    }
}
