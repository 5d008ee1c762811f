//! Texts at the edge of the API. Graphs have numbers in their place: a text of the model is its position in a table, and texts of a call
//! that are not in it follow behind, equal ones with the same number. So texts that the model does not know differ from all that it
//! knows and from each other, and are found again when they are passed on to outputs.

mod calls;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use tensorc_frontend::onnx::{ImportedTexts, MapKeys};
use tensorc_ops::texts::TextArray;

pub(crate) use calls::TextCalls;

use crate::error::Error;
use crate::model::{Model, Open};
use crate::tensor::Tensor;

/// An input or output: numbers or texts.
#[derive(Clone, Debug, PartialEq, derive_more::From)]
pub enum Array {
    /// Numbers.
    Numbers(Tensor),
    /// Texts.
    Texts(TextArray),
}

impl Array {
    /// The extents, outermost first.
    pub fn dims(&self) -> &[u64] {
        match self {
            Array::Numbers(tensor) => tensor.dims(),
            Array::Texts(texts) => texts.dims(),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Array::Numbers(_) => "numbers",
            Array::Texts(_) => "texts",
        }
    }
}

/// The texts of a model, and which of its inputs and outputs are texts.
#[derive(Debug, Default)]
pub struct ModelTexts {
    list: Vec<Arc<str>>,
    numbers: HashMap<Arc<str>, i64>,
    inputs: BTreeSet<String>,
    outputs: BTreeSet<String>,
    maps: BTreeMap<String, MapKeys>,
}

impl ModelTexts {
    pub(crate) fn of(imported: &ImportedTexts) -> ModelTexts {
        let list: Vec<Arc<str>> = imported.list.iter().map(|text| text.as_str().into()).collect();
        let numbers = list.iter().cloned().zip(0..).collect();
        let (inputs, outputs, maps) = (imported.inputs.clone(), imported.outputs.clone(), imported.maps.clone());
        ModelTexts { list, numbers, inputs, outputs, maps }
    }

    /// The texts by their numbers.
    pub fn list(&self) -> &[Arc<str>] {
        &self.list
    }

    /// Whether an input is texts.
    pub fn is_input(&self, name: &str) -> bool {
        self.inputs.contains(name)
    }

    /// Whether an output is texts.
    pub fn is_output(&self, name: &str) -> bool {
        self.outputs.contains(name)
    }

    /// The keys of an output that is maps in the model's file. It is the tensor of the values, with a column for each key.
    pub fn map_keys(&self, name: &str) -> Option<&MapKeys> {
        self.maps.get(name)
    }
}

/// The numbers of texts in one call.
pub(crate) struct Numbering<'t> {
    texts: &'t ModelTexts,
    /// Texts that the model does not have.
    more: Vec<Arc<str>>,
    numbers: HashMap<Arc<str>, i64>,
}

impl<'t> Numbering<'t> {
    pub fn new(texts: &'t ModelTexts) -> Numbering<'t> {
        Numbering { texts, more: vec![], numbers: HashMap::new() }
    }

    fn number(&mut self, text: &Arc<str>) -> i64 {
        if let Some(known) = self.texts.numbers.get(text) {
            return *known;
        }
        let next = (self.texts.list.len() + self.more.len()) as i64;
        *self.numbers.entry(text.clone()).or_insert_with_key(|text| {
            self.more.push(text.clone());
            next
        })
    }

    /// The numbers of texts.
    ///
    /// # Errors
    /// The shape is too large.
    pub fn numbers(&mut self, texts: &TextArray) -> Result<Tensor, Error> {
        let numbers: Vec<i64> = texts.texts().iter().map(|text| self.number(text)).collect();
        Tensor::from_slice(texts.dims(), &numbers)
    }

    /// The texts of numbers.
    ///
    /// # Errors
    /// One of them is none of a text.
    pub fn texts(&self, numbers: &Tensor) -> Result<TextArray, Error> {
        let (known, more) = (&self.texts.list, &self.more);
        let text = |number: i64| {
            let at = usize::try_from(number).ok()?;
            known.get(at).or_else(|| more.get(at.checked_sub(known.len())?)).cloned()
        };
        let one = |number: i64| {
            text(number).ok_or_else(|| Error::Internal(format!("{number} is the number of no text of the call")))
        };
        let texts = numbers.data().to_i64s().into_iter().map(one).collect::<Result<Vec<_>, _>>()?;
        let size = || Error::TensorSize { elements: 0, dims: numbers.dims().to_vec() };
        TextArray::new(numbers.dims(), texts).ok_or_else(size)
    }

    /// The numbers of an input, as it is or of its texts.
    ///
    /// # Errors
    /// It is texts and ought to be numbers, or the other way round.
    fn input(&mut self, name: &str, given: &Array) -> Result<Tensor, Error> {
        let expected = if self.texts.is_input(name) { "texts" } else { "numbers" };
        match given {
            _ if given.kind() != expected => {
                Err(Error::TextInput { name: name.to_owned(), expected, found: given.kind() })
            }
            Array::Numbers(tensor) => Ok(tensor.clone()),
            Array::Texts(texts) => self.numbers(texts),
        }
    }
}

impl Model {
    /// The model with what its file has to do with texts.
    pub(crate) fn with_texts(mut self, imported: &ImportedTexts) -> Model {
        if imported.is_empty() {
            return self;
        }
        let texts = Some(Arc::new(ModelTexts::of(imported)));
        if imported.calls.is_empty() {
            self.texts = texts;
            return self;
        }
        let outputs = self.graph().outputs().iter().map(|(name, _)| name.to_string()).collect();
        let (calls, inputs) = TextCalls::of(self, &imported.calls);
        let mut outer = Model::new(calls.compiler().clone(), inputs);
        (outer.texts, outer.open) = (texts, Some((Open::Texts(calls), outputs)));
        outer
    }

    /// The texts of the model, if it has to do with any. In its graphs, and for [`Model::run`], they are numbers i64, positions in their
    /// list; texts that are not in it are other numbers, equal ones the same.
    pub fn texts(&self) -> Option<&ModelTexts> {
        self.texts.as_deref()
    }

    /// Whether inputs or outputs are texts.
    pub fn takes_or_gives_texts(&self) -> bool {
        let has = |texts: &ModelTexts| !texts.inputs.is_empty() || !texts.outputs.is_empty();
        matches!(self.open, Some((Open::Texts(_), _))) || self.texts().is_some_and(has)
    }

    /// That the host computes operators on texts, so that the model is several graphs.
    ///
    /// # Errors
    /// It does.
    pub fn refuse_text_operators(&self) -> Result<(), Error> {
        match &self.open {
            Some((Open::Texts(calls), _)) => Err(calls.divided()),
            _ => Ok(()),
        }
    }

    /// Inputs as [`Model::run`] takes them: numbers in the place of texts.
    ///
    /// # Errors
    /// An input is texts and ought to be numbers, or the other way round.
    pub fn numbers_of(&self, inputs: &[(&str, Array)]) -> Result<Vec<(String, Tensor)>, Error> {
        let none = ModelTexts::default();
        let mut numbering = Numbering::new(self.texts().unwrap_or(&none));
        inputs.iter().map(|(name, given)| Ok(((*name).to_owned(), numbering.input(name, given)?))).collect()
    }

    /// As [`Model::run`], with inputs and outputs that may be texts. Operators on texts, such as `StringNormalizer`, are computed by
    /// the calling thread.
    ///
    /// ```no_run
    /// use tensorc::{Array, TextArray};
    /// # fn main() -> Result<(), tensorc::Error> {
    /// # let model = tensorc::Compiler::new(tensorc::Options::default())?.load("model.onnx")?;
    /// # let too_large = || tensorc::Error::Internal("the texts do not fill the shape".to_owned());
    /// let colours = TextArray::of(&[2, 1], &["red", "blue"]).ok_or_else(too_large)?;
    /// for (name, result) in model.run_arrays(&[("colour", Array::from(colours))])? {
    ///     println!("{name}: {result:?}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Model::run`] and [`Model::numbers_of`]; or an operator on texts does not take its operands.
    pub fn run_arrays(&self, inputs: &[(&str, Array)]) -> Result<Vec<(String, Array)>, Error> {
        if let Some((Open::Lists(lists), _)) = &self.open {
            let names: Vec<&str> = inputs.iter().map(|(name, _)| *name).collect();
            return lists.model(&names)?.run_arrays(inputs);
        }
        let none = ModelTexts::default();
        let texts = self.texts().unwrap_or(&none);
        let mut numbering = Numbering::new(texts);
        let known = inputs.iter().map(|(name, given)| Ok((*name, numbering.input(name, given)?)));
        let given = known.collect::<Result<Vec<_>, Error>>()?;
        let outputs = match &self.open {
            Some((Open::Texts(calls), _)) => {
                self.ordered(&given)?;
                calls.run(&mut numbering, given)?
            }
            _ => self.run(&given)?,
        };
        let one = |(name, tensor): (String, Tensor)| match texts.is_output(&name) {
            true => Ok((name, Array::Texts(numbering.texts(&tensor)?))),
            false => Ok((name, Array::Numbers(tensor))),
        };
        outputs.into_iter().map(one).collect()
    }
}
