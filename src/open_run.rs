//! Memory of runs of plans for many shapes. A plan takes the numbers of a shape in the place of those of another, so that a new
//! shape allocates next to nothing.

use std::sync::Arc;

use tensorc_abi::KernelSignature;
use tensorc_ir::DenseType;
use tensorc_ir::extent::Binding;
use tensorc_runtime::plan::RenumberRoom;
use tensorc_runtime::{Context, Executable};
use tensorc_schedule::PlacementRoom;

use crate::compile::Report;
use crate::compiler::Compiler;
use crate::error::Error;
use crate::open_plan::OpenPlan;

/// Most copies of plans with numbers that the memory of one run holds.
const MAX_BOUND: usize = 8;

/// What one run at a time uses, of all plans of a model for many shapes.
#[derive(Default)]
pub(crate) struct OpenRun {
    /// What executes one of the plans; none before the first run.
    context: Option<Context>,
    bound: Vec<BoundPlan>,
    room: BindingRoom,
    /// Counts runs.
    clock: u64,
}

/// A plan with the numbers of a shape.
struct BoundPlan {
    plan: Arc<OpenPlan>,
    /// Of the inputs.
    types: Vec<DenseType>,
    signatures: Vec<KernelSignature>,
    executable: Arc<Executable>,
    /// Whether the shape was run before it was bound here. Then a new shape does not overwrite its numbers.
    comes_back: bool,
    /// The run that used it last.
    used: u64,
}

/// Memory in which numbers are found, for one shape after the other.
#[derive(Default)]
pub(crate) struct BindingRoom {
    pub binding: Binding,
    pub placement: PlacementRoom,
    pub renumber: RenumberRoom,
}

impl OpenRun {
    /// A context that executes the plan with its numbers for inputs of these types, for which it holds. A shape that comes back
    /// has numbers of its own from then on, if there are not too many of such shapes.
    ///
    /// # Errors
    /// The plan takes more than limits allow for the shape, or breaks a rule of the run time, or memory is short.
    pub fn enter(
        &mut self,
        compiler: &Compiler,
        plan: &Arc<OpenPlan>,
        types: &[DenseType],
        comes_back: bool,
    ) -> Result<&mut Context, Error> {
        let at = self.bind(compiler, plan, types, comes_back)?;
        self.context_at(compiler, at)
    }

    /// The position of the plan with its numbers for inputs of these types.
    ///
    /// # Errors
    /// As [`OpenRun::enter`].
    pub fn bind(
        &mut self,
        compiler: &Compiler,
        plan: &Arc<OpenPlan>,
        types: &[DenseType],
        comes_back: bool,
    ) -> Result<usize, Error> {
        self.clock += 1;
        let is_it = |bound: &BoundPlan| Arc::ptr_eq(&bound.plan, plan) && bound.types == types;
        let at = match self.bound.iter().position(is_it) {
            Some(at) => at,
            None => {
                plan.rebind(types, &mut self.room.binding)?;
                let at = match self.place(plan, comes_back) {
                    // Another order of buffers may be within limits that this one exceeds.
                    Some(at) => self.renumber(at, compiler, types).or_else(|_| self.add(compiler, plan, types))?,
                    None => self.add(compiler, plan, types)?,
                };
                self.bound[at].comes_back = comes_back;
                at
            }
        };
        self.bound[at].used = self.clock;
        Ok(at)
    }

    /// Whose numbers a shape replaces: new shapes those of the last one that was new; `None` if there is room for more.
    fn place(&self, plan: &Arc<OpenPlan>, comes_back: bool) -> Option<usize> {
        let own = || self.bound.iter().enumerate().filter(|(_, bound)| Arc::ptr_eq(&bound.plan, plan));
        let last = own().find(|(_, bound)| !bound.comes_back && !comes_back);
        let oldest = || own().filter(|_| self.bound.len() >= MAX_BOUND).min_by_key(|(_, bound)| bound.used);
        last.or_else(oldest).map(|(at, _)| at)
    }

    /// Adds the plan with the numbers of the binding, in place of the one that was not used longest if there are too many.
    fn add(&mut self, compiler: &Compiler, plan: &Arc<OpenPlan>, types: &[DenseType]) -> Result<usize, Error> {
        let oldest = self.bound.iter().enumerate().min_by_key(|(_, bound)| bound.used).map(|(at, _)| at);
        if let Some(oldest) = oldest.filter(|_| self.bound.len() >= MAX_BOUND) {
            self.bound.swap_remove(oldest);
        }
        let (executable, signatures) = plan.executable(compiler, &mut self.room, &mut Report::default())?;
        let (plan, types, executable) = (plan.clone(), types.to_vec(), Arc::new(executable));
        self.bound.push(BoundPlan { plan, types, signatures, executable, comes_back: false, used: 0 });
        Ok(self.bound.len() - 1)
    }

    /// Gives one of the plans the numbers of the binding.
    fn renumber(&mut self, at: usize, compiler: &Compiler, types: &[DenseType]) -> Result<usize, Error> {
        self.context_at(compiler, at)?;
        let plan = self.bound[at].plan.clone();
        let context = self.context.take().ok_or_else(|| Error::Internal("a run has no context".to_owned()))?;
        // The context alone has the executable while that changes. If it cannot, both go.
        let BoundPlan { mut signatures, executable, types: mut old, .. } = self.bound.swap_remove(at);
        drop(executable);
        let change = |one: &mut Executable| plan.renumber(compiler, one, &mut signatures, &mut self.room);
        let context = context.renumbered(change)?.ok_or_else(|| Error::Internal("a shape is in use".to_owned()))?;
        let executable = context.executable().clone();
        self.context = Some(context);
        old.clone_from_slice(types);
        self.bound.push(BoundPlan { plan, types: old, signatures, executable, comes_back: false, used: 0 });
        Ok(self.bound.len() - 1)
    }

    /// The context, with the plan at a position.
    ///
    /// # Errors
    /// Memory is short.
    pub fn context_at(&mut self, compiler: &Compiler, at: usize) -> Result<&mut Context, Error> {
        self.context_of(compiler, &self.bound[at].executable.clone())
    }

    /// The context, with an executable.
    ///
    /// # Errors
    /// Memory is short.
    pub fn context_of(&mut self, compiler: &Compiler, executable: &Arc<Executable>) -> Result<&mut Context, Error> {
        let context = match self.context.take() {
            Some(context) => context,
            None => compiler.limited(Context::new(executable.clone(), compiler.pool())?),
        };
        let context = self.context.insert(context);
        context.switch(executable)?;
        Ok(context)
    }
}
