//! What bodies that the host runs are given and give: tensors, and sequences as the tensors that hold them.

use std::rc::Rc;
use std::sync::Arc;

use super::import::Importer;
use super::meaning::Meaning;
use super::packed::Packed;
use super::scope::CommonType;
use super::unsupported::{Stop, UNDECIDED, unsupported};
use super::upgrade::ValueFacts;

/// What is known of a value in every iteration, or in both branches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Carried {
    Tensor(CommonType),
    /// A sequence, with the type of its tensors; `None` if it has none.
    Sequence(Option<CommonType>),
}

impl Carried {
    /// What both have in common; `None` if they differ by more than extents and lengths.
    pub fn with(&self, other: &Carried) -> Option<Carried> {
        Some(match (self, other) {
            (Carried::Tensor(a), Carried::Tensor(b)) => Carried::Tensor(a.with(b)?),
            (Carried::Sequence(Some(a)), Carried::Sequence(Some(b))) => Carried::Sequence(Some(a.with(b)?)),
            (Carried::Sequence(a), Carried::Sequence(b)) => Carried::Sequence(a.clone().or(b.clone())),
            _ => return None,
        })
    }

    /// The types of the tensors that hold it.
    pub fn tensors(&self) -> Vec<CommonType> {
        match self {
            Carried::Tensor(ty) => vec![ty.clone()],
            Carried::Sequence(Some(element)) => Packed::types(element).to_vec(),
            Carried::Sequence(None) => vec![],
        }
    }
}

impl Importer<'_> {
    /// What is known of a value.
    pub(super) fn carried(&mut self, name: &str) -> Result<Carried, Stop> {
        match self.imported(name)? {
            Meaning::Tensor(_) => Ok(Carried::Tensor(self.common_type(name)?)),
            Meaning::Packed(list) => Ok(Carried::Sequence(Some(list.element.clone()))),
            Meaning::Sequence(tensors) => {
                let mut all = Carried::Sequence(None);
                for name in tensors.iter() {
                    let one = Carried::Sequence(Some(self.common_type(name)?));
                    let Some(both) = all.with(&one) else {
                        return unsupported("it carries a sequence of tensors of different element types or ranks");
                    };
                    all = both;
                }
                Ok(all)
            }
            Meaning::Map(_) | Meaning::Absent | Meaning::Reported => unsupported(UNDECIDED),
        }
    }

    /// Adds the inputs of a body that hold a value; the name that stands for it there.
    pub(super) fn carried_input(&mut self, of: &str, ty: &Carried) -> String {
        let element = match ty {
            Carried::Tensor(ty) => return self.body_input(of, ty),
            Carried::Sequence(element) => element,
        };
        let list = match element {
            None => Meaning::Sequence(Rc::new([])),
            Some(element) => {
                let [elements, shapes] = Packed::types(element).map(|ty| self.body_input(of, &ty).into());
                Packed { elements, shapes, element: element.clone() }.into()
            }
        };
        let name = self.fresh_name(of);
        self.values.insert(name.clone(), list);
        name
    }

    /// The names of the tensors that hold a value of a type.
    pub(super) fn carried_tensors(&mut self, name: &str, ty: &Carried, label: &Arc<str>) -> Result<Vec<String>, Stop> {
        let element = match ty {
            Carried::Tensor(_) => return Ok(vec![name.to_owned()]),
            Carried::Sequence(None) => return Ok(vec![]),
            Carried::Sequence(Some(element)) => element,
        };
        let list = match self.imported(name)? {
            Meaning::Sequence(tensors) if tensors.is_empty() => self.packed_empty(element, label),
            list => self.packed(&list, label)?,
        };
        Ok([list.elements, list.shapes].map(|name| name.to_string()).to_vec())
    }

    /// Defines the values that tensors hold, and returns the names of the values. `tensors` are names of tensors.
    pub(super) fn carried_results(&mut self, types: &[Carried], tensors: &[String], label: &str) -> Vec<String> {
        let (mut tensors, mut names) = (tensors.iter(), vec![]);
        for ty in types {
            let own: Vec<&String> = tensors.by_ref().take(ty.tensors().len()).collect();
            names.push(match (ty, &own[..]) {
                (Carried::Sequence(Some(element)), [elements, shapes]) => {
                    let [elements, shapes] = [elements, shapes].map(|name| name.as_str().into());
                    let list = Packed { elements, shapes, element: element.clone() };
                    self.named_list(list.into(), label)
                }
                (_, [tensor]) => (*tensor).clone(),
                _ => self.named_list(Meaning::Sequence(Rc::new([])), label),
            });
        }
        names
    }

    fn named_list(&mut self, list: Meaning, label: &str) -> String {
        let name = self.fresh_name(label);
        self.values.insert(name.clone(), list);
        name
    }
}
