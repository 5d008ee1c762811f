//! Functions that another code generator made, as parts of an object that Cranelift's writer makes.
//!
//! Sections, labels and relocations of the other object are copied as they are, so no instruction is looked at. What
//! it calls is found by name.

use std::collections::HashMap;

use object::read::{File, Object as _, ObjectSection as _, ObjectSymbol as _, Section};
use object::write::{Object, Relocation, SectionId, StandardSection, Symbol, SymbolId, SymbolSection};
use object::{
    RelocationFlags, RelocationTarget, SectionIndex, SectionKind, SymbolFlags, SymbolIndex, SymbolKind, SymbolScope,
    elf,
};
use tensorc_ir::diag::Result;

use crate::walk::internal;

/// An object that defines one function.
pub(super) struct MergedObject<'o> {
    file: File<'o>,
    name: &'o str,
}

fn bad(why: impl std::fmt::Display) -> tensorc_ir::diag::Diagnostic {
    internal(format!("the object of a kernel: {why}"))
}

impl<'o> MergedObject<'o> {
    pub fn new(name: &'o str, object: &'o [u8]) -> Result<MergedObject<'o>> {
        Ok(MergedObject { file: File::parse(object).map_err(bad)?, name })
    }

    /// Bytes of the function's instructions.
    pub fn code_bytes(&self) -> Result<u64> {
        let function = self.file.symbols().find(|s| s.name() == Ok(self.name) && !s.is_undefined());
        function.map(|s| s.size()).ok_or_else(|| bad(format!("no function `{}`", self.name)))
    }

    /// Defines the function in an object that declares it. `callee` gives what it calls its name there.
    pub fn copy(&self, into: &mut Object<'_>, callee: &dyn Fn(&str) -> String) -> Result<()> {
        let mut sections = HashMap::new();
        for section in self.file.sections() {
            if let Some(id) = self.section(into, &section)? {
                sections.insert(section.index(), id);
            }
        }
        let mut symbols = HashMap::new();
        for symbol in self.file.symbols() {
            if let Some(id) = self.symbol(into, &symbol, &sections, callee)? {
                symbols.insert(symbol.index(), id);
            }
        }
        for section in self.file.sections() {
            if let Some(id) = sections.get(&section.index()) {
                relocate(into, &section, *id, &symbols)?;
            }
        }
        Ok(())
    }

    /// Copies what a section holds, if it is part of the program.
    fn section(&self, into: &mut Object<'_>, section: &Section<'_, '_>) -> Result<Option<SectionId>> {
        let object::SectionFlags::Elf { sh_flags } = section.flags() else { return Err(bad("no ELF file")) };
        if sh_flags & u64::from(elf::SHF_ALLOC) == 0 || section.size() == 0 {
            return Ok(None);
        }
        let standard = match section.kind() {
            SectionKind::Text => StandardSection::Text,
            // Parts are not merged with equal ones of other objects.
            SectionKind::ReadOnlyData | SectionKind::ReadOnlyString => StandardSection::ReadOnlyData,
            SectionKind::ReadOnlyDataWithRel => StandardSection::ReadOnlyDataWithRel,
            other => return Err(bad(format!("a section of {other:?}"))),
        };
        let part = section.name().map_err(bad)?;
        let name =
            if standard == StandardSection::Text { self.name.to_owned() } else { format!("{}{part}", self.name) };
        let id = into.add_subsection(standard, name.as_bytes());
        into.append_section_data(id, section.data().map_err(bad)?, section.align());
        Ok(Some(id))
    }

    fn symbol(
        &self,
        into: &mut Object<'_>,
        symbol: &object::read::Symbol<'_, '_>,
        sections: &HashMap<SectionIndex, SectionId>,
        callee: &dyn Fn(&str) -> String,
    ) -> Result<Option<SymbolId>> {
        let name = symbol.name().map_err(bad)?;
        if symbol.is_undefined() {
            let name = callee(name);
            if name.is_empty() {
                return Ok(None);
            }
            let new = Symbol {
                name: name.clone().into_bytes(),
                value: 0,
                size: 0,
                kind: SymbolKind::Text,
                scope: SymbolScope::Unknown,
                weak: false,
                section: SymbolSection::Undefined,
                flags: SymbolFlags::None,
            };
            return Ok(Some(into.symbol_id(name.as_bytes()).unwrap_or_else(|| into.add_symbol(new))));
        }
        let Some(section) = symbol.section_index().and_then(|index| sections.get(&index)) else { return Ok(None) };
        if symbol.kind() == SymbolKind::Section {
            return Ok(Some(into.section_symbol(*section)));
        }
        if name == self.name {
            let id = into.symbol_id(name.as_bytes()).ok_or_else(|| bad(format!("`{name}` is not declared")))?;
            into.symbol_mut(id).scope = SymbolScope::Compilation;
            into.set_symbol_data(id, *section, symbol.address(), symbol.size());
            return Ok(Some(id));
        }
        Ok(Some(into.add_symbol(Symbol {
            name: name.as_bytes().to_vec(),
            value: symbol.address(),
            size: symbol.size(),
            kind: SymbolKind::Label,
            scope: SymbolScope::Compilation,
            weak: false,
            section: SymbolSection::Section(*section),
            flags: SymbolFlags::None,
        })))
    }
}

fn relocate(
    into: &mut Object<'_>,
    section: &Section<'_, '_>,
    id: SectionId,
    symbols: &HashMap<SymbolIndex, SymbolId>,
) -> Result<()> {
    for (offset, relocation) in section.relocations() {
        let RelocationFlags::Elf { r_type } = relocation.flags() else { return Err(bad("no ELF file")) };
        let RelocationTarget::Symbol(target) = relocation.target() else { return Err(bad("a relocation to nothing")) };
        let symbol = *symbols.get(&target).ok_or_else(|| bad("a relocation to what is left out"))?;
        let flags = RelocationFlags::Elf { r_type };
        into.add_relocation(id, Relocation { offset, symbol, addend: relocation.addend(), flags }).map_err(bad)?;
    }
    Ok(())
}
