//! Reading a model file: decoding, and the checks on versions.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use prost::Message;
use tensorc_abi::content::DataFile;
use tensorc_ir::op::OnnxName;

use super::error::{NotOnnx, OnnxError};
use super::files::{ModelFiles, ReadOptions};
use super::format::{self, other_format};
use super::proto::{GraphProto, ModelProto, OperatorSetIdProto};
use super::skeleton::Skeleton;
use super::wire;
use crate::read;

/// The IR versions that are read. Version 3 is the first with operator set imports.
const OLDEST_IR_VERSION: i64 = 3;
const NEWEST_IR_VERSION: i64 = 14;

/// The newest version of the operator set `ai.onnx` that is read.
pub(crate) const NEWEST_OPSET: i64 = 28;

/// The versions of operator sets that are read: the oldest and the newest.
const OPSETS: [(&str, i64, i64); 3] =
    [(STANDARD_DOMAIN, 1, NEWEST_OPSET), (OnnxName::MICROSOFT, 1, 1), (OnnxName::ML, 1, 5)];

/// A decoded model and where its external data lies.
#[derive(Debug)]
pub struct OnnxModel {
    /// The model without its graph.
    pub proto: ModelProto,
    /// The graph of the model.
    pub graph: GraphProto,
    /// The versions of operators by domain.
    pub opsets: Opsets,
    /// Where the data of tensors is read.
    pub files: ModelFiles,
}

impl OnnxModel {
    /// Opens a model file, with default options.
    ///
    /// # Errors
    /// As [`OnnxModel::open_with`].
    pub fn open(path: &Path) -> Result<OnnxModel, OnnxError> {
        OnnxModel::open_with(path, ReadOptions::default())
    }

    /// Opens a model file, which may be reached by links: the user names it. External data is looked for in the folder of
    /// `path`, not in that of what a link leads to. The data of large tensors is read when it is needed: the file may be
    /// removed meanwhile, but not be changed.
    ///
    /// # Errors
    /// The file cannot be read, is no regular file or no ONNX model, or uses a version that is not supported; or reading it
    /// takes more than the limits allow.
    pub fn open_with(path: &Path, options: ReadOptions) -> Result<OnnxModel, OnnxError> {
        let open_error = |source| OnnxError::Open { path: path.to_owned(), source };
        let file = read::open(path).map_err(open_error)?;
        let folder = match path.parent() {
            Some(parent) if parent != Path::new("") => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        let mut files = ModelFiles::new(Some(folder), options);
        let file = DataFile::new(path.display().to_string(), file).map_err(open_error)?;
        files.budget.take_bytes(file.size())?;
        let skeleton = Skeleton::read(&file).map_err(open_error)?;
        files.holes = skeleton.holes;
        decode(skeleton.bytes, files)
    }

    /// Decodes a model from memory; `folder` is where its external data lies, if anywhere.
    ///
    /// # Errors
    /// The bytes are no ONNX model, or use a version that is not supported.
    pub fn decode(bytes: Bytes, folder: Option<PathBuf>) -> Result<OnnxModel, OnnxError> {
        OnnxModel::decode_with(bytes, folder, ReadOptions::default())
    }

    /// As [`OnnxModel::decode`], with options.
    ///
    /// # Errors
    /// Also: decoding takes more than the limits allow.
    pub fn decode_with(bytes: Bytes, folder: Option<PathBuf>, options: ReadOptions) -> Result<OnnxModel, OnnxError> {
        decode(bytes, ModelFiles::new(folder, options))
    }
}

fn decode(bytes: Bytes, mut files: ModelFiles) -> Result<OnnxModel, OnnxError> {
    let scanned = wire::scan(&bytes, &wire::MODEL, &mut files.budget);
    scanned.map_err(|error| other_format(&bytes).map_or(error, |f| OnnxError::NotOnnx(NotOnnx::OtherFormat(f))))?;
    let decoded = if bytes.is_empty() { None } else { ModelProto::decode(bytes.clone()).ok() };
    let mut proto = decoded.ok_or_else(|| OnnxError::NotOnnx(format::problem(&bytes)))?;
    let Some(ir_version) = proto.ir_version else { return Err(OnnxError::NotOnnx(NotOnnx::NoIrVersion)) };
    if !(OLDEST_IR_VERSION..=NEWEST_IR_VERSION).contains(&ir_version) {
        return Err(OnnxError::IrVersion { found: ir_version, newest: NEWEST_IR_VERSION });
    }
    let graph = proto.graph.take().ok_or(OnnxError::NotOnnx(NotOnnx::NoGraph))?;
    let opsets = Opsets::new(&proto.opset_import)?;
    Ok(OnnxModel { proto, graph, opsets, files })
}

/// Which version of each operator set a model or function uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Opsets(BTreeMap<String, i64>);

/// The domain of the standard operators has two spellings; messages use the long one.
pub(crate) const STANDARD_DOMAIN: &str = OnnxName::STANDARD;

/// The canonical spelling of an operator domain.
pub(crate) fn canonical_domain(domain: &str) -> &str {
    if domain.is_empty() { STANDARD_DOMAIN } else { domain }
}

impl Opsets {
    /// Collects imports; of a domain that is imported several times the newest version counts.
    pub fn new(imports: &[OperatorSetIdProto]) -> Result<Opsets, OnnxError> {
        let mut versions = BTreeMap::new();
        for import in imports {
            let domain = canonical_domain(import.domain());
            let found = import.version();
            let known = OPSETS.iter().find(|(name, ..)| *name == domain);
            if let Some((_, oldest, newest)) = known.copied().filter(|(_, low, high)| !(low..=high).contains(&&found)) {
                return Err(OnnxError::Opset { domain: domain.to_owned(), found, oldest, newest });
            }
            let version = versions.entry(domain.to_owned()).or_insert(found);
            *version = found.max(*version);
        }
        Ok(Opsets(versions))
    }

    /// The version of an operator set; `None` when it is not imported.
    pub fn version(&self, domain: &str) -> Option<i64> {
        self.0.get(canonical_domain(domain)).copied()
    }
}
