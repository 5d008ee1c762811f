//! Names that are cheap to copy.

use std::ops::Deref;
use std::sync::Arc;

/// An immutable text: borrowed from the program, or shared. Cloning never allocates.
#[derive(Clone, derive_more::Debug, derive_more::Display)]
#[debug("{:?}", self.as_str())]
#[display("{}", self.as_str())]
pub struct SpanName(Text);

#[derive(Clone)]
enum Text {
    Static(&'static str),
    Shared(Arc<str>),
}

impl SpanName {
    /// A name that is part of the program.
    pub const fn from_static(text: &'static str) -> SpanName {
        SpanName(Text::Static(text))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Text::Static(text) => text,
            Text::Shared(text) => text,
        }
    }
}

impl Default for SpanName {
    fn default() -> SpanName {
        SpanName::from_static("")
    }
}

impl From<&'static str> for SpanName {
    fn from(text: &'static str) -> SpanName {
        SpanName::from_static(text)
    }
}

impl From<Arc<str>> for SpanName {
    fn from(text: Arc<str>) -> SpanName {
        SpanName(Text::Shared(text))
    }
}

impl From<String> for SpanName {
    fn from(text: String) -> SpanName {
        SpanName(Text::Shared(text.into()))
    }
}

impl From<&SpanName> for SpanName {
    fn from(name: &SpanName) -> SpanName {
        name.clone()
    }
}

impl Deref for SpanName {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl PartialEq for SpanName {
    fn eq(&self, other: &SpanName) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for SpanName {}

impl PartialEq<str> for SpanName {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for SpanName {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl PartialOrd for SpanName {
    fn partial_cmp(&self, other: &SpanName) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for SpanName {
    fn cmp(&self, other: &SpanName) -> std::cmp::Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl std::hash::Hash for SpanName {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}
