//! A memory plan as a drawing.
