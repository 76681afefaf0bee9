//! Starts and undoes faults.

use super::Stage;
use super::agenda::Turn;
use super::diary::What;
use super::folder::{copy_folder, fill, flip_bit};
use super::shim::Ailment;
use super::slowness::Slowness;
use super::wiring::Owner;
use crate::network::{Command, LinkChange};
use crate::scenario::Plan;
use anyhow::{Context, ensure};
use rand::Rng;
use rand::seq::SliceRandom;
use rustix::process::Signal;
use std::time::Duration;

impl Stage<'_> {
    pub(super) fn take_turn(&mut self, turn: Turn, since: Duration) -> anyhow::Result<()> {
        match turn {
            Turn::Begin(n) => self.begin(n, since),
            Turn::Step(n) => self.step(n, since),
            Turn::End(n) => self.end(n),
        }
    }

    fn begin(&mut self, n: usize, since: Duration) -> anyhow::Result<()> {
        let fault = self.agenda.faults[n].clone();
        if let Err(lacking) = self.can(&fault) {
            self.agenda.ends.remove(&n);
            let why = format!("{} (needs {lacking})", fault.what);
            self.diary.note(What::LeftOut, None, Some(n + 1), &why);
            return Ok(());
        }
        let nodes = self.agenda.choose(n);
        let names: Vec<&str> = nodes.iter().map(|n| self.cast.name(*n)).collect();
        let picked = if fault.pick > 0 { format!(" (picked: {})", names.join(", ")) } else { String::new() };
        let lasting = fault.lasting.map_or(String::new(), |l| format!(", for {} s", l.as_secs_f64()));
        self.diary.note(What::FaultBegan, None, Some(n + 1), &format!("{}{picked}{lasting}", fault.what));
        match &fault.plan {
            Plan::Links { pairs, change } => self.lay(Owner::Fault(n), pairs.clone(), change.clone())?,
            Plan::Reset { pairs } => self.reset(pairs, fault.lasting)?,
            Plan::Flap { .. } | Plan::Swizzle { .. } | Plan::Churn { .. } | Plan::RollingRestart { .. } => {
                self.agenda.steps.insert(n, since);
            }
            plan => {
                for node in nodes {
                    self.strike(n, node, plan)?;
                }
            }
        }
        Ok(())
    }

    /// Applies a fault to one node.
    fn strike(&mut self, n: usize, node: usize, plan: &Plan) -> anyhow::Result<()> {
        match plan {
            Plan::Kill { silent } => {
                if *silent && let Some(network) = &self.network {
                    self.wiring.silence(network, node)?;
                }
                self.cast.kill(node, &mut self.diary);
            }
            Plan::Stop => self.cast.terminate(node),
            Plan::Start { ticket } => {
                if *ticket {
                    self.cast.actors[node].ticket = Some(self.cast.invite()?);
                }
                self.start(node)?;
            }
            Plan::Freeze => {
                self.cast.signal(node, Signal::STOP);
                self.diary.note(What::Frozen, Some(&self.scenario.topology.seats[node].name), None, "");
            }
            Plan::Slow { .. } => self.slow_down(n, node),
            Plan::Wipe => {
                self.cast.kill(node, &mut self.diary);
                std::fs::remove_dir_all(self.cast.home(node)).context("cannot empty a node's folder")?;
                self.start(node)?;
            }
            Plan::Rewind => {
                self.cast.kill(node, &mut self.diary);
                let (home, before) = (self.cast.home(node), self.cast.disk(self.cast.name(node)).join("before"));
                std::fs::remove_dir_all(&home).context("cannot empty a node's folder")?;
                copy_folder(&before, &home).context("cannot bring back a node's older folder")?;
                self.start(node)?;
            }
            Plan::Damage { file } => {
                self.cast.kill(node, &mut self.diary);
                let draw = self.agenda.random.random();
                let told = flip_bit(&self.cast.home(node), file, draw)?;
                self.diary.say(&told);
                self.start(node)?;
            }
            Plan::Clone => {
                let copy = self.cast.disk(self.cast.name(node)).join("double");
                self.cast.signal(node, Signal::STOP);
                let copied = copy_folder(&self.cast.home(node), &copy);
                self.cast.signal(node, Signal::CONT);
                copied.context("cannot copy a node's folder")?;
                self.cast.start_double(node, &copy, &mut self.diary)?;
            }
            Plan::Fill { free_kib } => fill(&self.cast.disk(self.cast.name(node)), *free_kib)?,
            Plan::DeleteFolder => {
                std::fs::remove_dir_all(self.cast.home(node)).context("cannot remove a node's folder")?;
            }
            Plan::SlowDisk { delay } => self.ail(node, |a| a.delay = *delay)?,
            Plan::Refuse(refusal) => self.ail(node, |a| a.refusal = Some(*refusal))?,
            Plan::Clock { by_ns } => self.ail(node, |a| a.clock_ns = *by_ns)?,
            Plan::Access { up, down } => self.access(node, (*up * 1e6) as u64, (*down * 1e6) as u64)?,
            Plan::Rebind => self.tell(Command::Forget { machine: node })?,
            _ => {}
        }
        Ok(())
    }

    fn end(&mut self, n: usize) -> anyhow::Result<()> {
        let fault = self.agenda.faults[n].clone();
        let nodes = self.agenda.chosen.get(&n).cloned().unwrap_or_default();
        match &fault.plan {
            Plan::Links { .. } => self.lift(Owner::Fault(n))?,
            Plan::Flap { pairs, .. } | Plan::Swizzle { pairs, .. } => {
                self.lift(Owner::Fault(n))?;
                for pair in 0..pairs.len() {
                    self.lift(Owner::Pair(n, pair))?;
                }
            }
            Plan::Freeze => {
                for node in nodes {
                    self.cast.signal(node, Signal::CONT);
                    self.diary.note(What::Thawed, Some(&self.scenario.topology.seats[node].name), None, "");
                }
            }
            Plan::Slow { .. } => drop(self.agenda.slow.remove(&n)),
            Plan::Kill { .. } | Plan::Stop | Plan::Churn { .. } | Plan::RollingRestart { .. } => {
                for node in nodes {
                    self.start(node)?;
                }
            }
            Plan::Clone => {
                for node in nodes {
                    self.cast.end_double(node, &mut self.diary);
                }
            }
            Plan::Fill { .. } => {
                for node in nodes {
                    std::fs::remove_file(self.cast.disk(self.cast.name(node)).join("ballast"))?;
                }
            }
            Plan::SlowDisk { .. } | Plan::Refuse(_) | Plan::Clock { .. } => {
                for node in nodes {
                    self.ail(node, |a| match fault.plan {
                        Plan::SlowDisk { .. } => a.delay = Duration::ZERO,
                        Plan::Clock { .. } => a.clock_ns = 0,
                        _ => a.refusal = None,
                    })?;
                }
            }
            Plan::Access { .. } => {
                for node in nodes {
                    let port = &self.scenario.topology.seats[node].port;
                    self.access(node, port.up, port.down)?;
                }
            }
            _ => {}
        }
        self.diary.note(What::FaultEnded, None, Some(n + 1), &fault.what);
        Ok(())
    }

    /// Makes the next move of a fault that has several.
    fn step(&mut self, n: usize, since: Duration) -> anyhow::Result<()> {
        let made = self.agenda.moves.entry(n).or_default();
        *made += 1;
        let made = *made;
        match self.agenda.faults[n].plan.clone() {
            Plan::Flap { pairs, every } => {
                if made % 2 == 1 {
                    self.lay(Owner::Fault(n), pairs, cut())?;
                } else {
                    self.lift(Owner::Fault(n))?;
                }
                self.agenda.steps.insert(n, since + every);
            }
            Plan::Swizzle { pairs, every } => self.swizzle(n, &pairs, made, since + every)?,
            Plan::Churn { every, least, most } => {
                self.churn(n, least, most)?;
                let pause = every.mul_f64(self.agenda.random.random_range(0.4..1.6));
                self.agenda.steps.insert(n, since + pause);
            }
            Plan::RollingRestart { every } => self.roll(n, made, since, every)?,
            _ => {}
        }
        Ok(())
    }

    /// Cuts pair after pair in one order, then heals them in another.
    fn swizzle(&mut self, n: usize, pairs: &[(usize, usize)], made: usize, next: Duration) -> anyhow::Result<()> {
        let count = pairs.len();
        if !self.agenda.order.contains_key(&n) {
            let (mut down, mut up) = (Vec::from_iter(0..count), Vec::from_iter(0..count));
            down.shuffle(&mut self.agenda.random);
            up.shuffle(&mut self.agenda.random);
            let order = down.into_iter().map(|p| (0, p)).chain(up.into_iter().map(|p| (1, p))).collect();
            self.agenda.order.insert(n, order);
        }
        let Some((heal, pair)) = self.agenda.order[&n].get(made - 1).copied() else { return Ok(()) };
        if heal == 0 {
            self.lay(Owner::Pair(n, pair), vec![pairs[pair]], cut())?;
        } else {
            self.lift(Owner::Pair(n, pair))?;
        }
        self.agenda.steps.insert(n, next);
        Ok(())
    }

    fn churn(&mut self, n: usize, least: usize, most: usize) -> anyhow::Result<()> {
        let nodes = self.agenda.chosen.get(&n).cloned().unwrap_or_default();
        let (mut up, mut down) = (Vec::new(), Vec::new());
        for node in nodes {
            if self.cast.runs(node) { up.push(node) } else { down.push(node) }
        }
        // Starts are likelier than kills, so that there are nodes to kill.
        let start = (self.agenda.random.random_bool(0.6) && up.len() < most) || up.len() <= least;
        let pool = if start { &down } else { &up };
        if pool.is_empty() {
            return Ok(());
        }
        let node = pool[self.agenda.random.random_range(0..pool.len())];
        if start {
            return self.start(node);
        }
        self.cast.kill(node, &mut self.diary);
        Ok(())
    }

    /// Stops one node after the other; each is started again at the next move.
    fn roll(&mut self, n: usize, made: usize, since: Duration, every: Duration) -> anyhow::Result<()> {
        let nodes = self.agenda.chosen.get(&n).cloned().unwrap_or_default();
        if made > 1 {
            let before = nodes[made - 2];
            if self.cast.runs(before) {
                // The process has not ended yet.
                *self.agenda.moves.entry(n).or_default() -= 1;
                self.agenda.steps.insert(n, since + Duration::from_millis(100));
                return Ok(());
            }
            self.start(before)?;
        }
        if made <= nodes.len() {
            self.cast.terminate(nodes[made - 1]);
            self.agenda.steps.insert(n, since + every);
        }
        Ok(())
    }

    /// Starts the node, unless it runs: now, or when a process that was asked to end has ended.
    fn start(&mut self, node: usize) -> anyhow::Result<()> {
        if self.cast.runs(node) {
            if self.cast.actors[node].asked {
                self.agenda.waiting.insert(node);
            }
            return Ok(());
        }
        self.lift(Owner::Silence(node))?;
        self.cast.start_node(node, false, &mut self.diary)?;
        for n in Vec::from_iter(self.agenda.slow.keys().copied()) {
            if self.agenda.chosen.get(&n).is_some_and(|chosen| chosen.contains(&node)) {
                self.slow_down(n, node);
            }
        }
        Ok(())
    }

    pub(super) fn start_those_who_wait(&mut self) -> anyhow::Result<()> {
        for node in std::mem::take(&mut self.agenda.waiting) {
            self.start(node)?;
        }
        Ok(())
    }

    /// Slows the node's process down, as the fault says.
    fn slow_down(&mut self, n: usize, node: usize) {
        if let (Plan::Slow { share }, Some(process)) = (&self.agenda.faults[n].plan, &self.cast.actors[node].process) {
            let slow = Slowness::of(process.id(), *share);
            self.agenda.slow.entry(n).or_default().push(slow);
        }
    }

    /// Changes the faults of a node's disk and clock.
    fn ail(&mut self, node: usize, change: impl FnOnce(&mut Ailment)) -> anyhow::Result<()> {
        let name = self.cast.name(node).to_owned();
        let Some(shim) = &mut self.cast.shim else { return Ok(()) };
        // A process that has written an event has loaded all its libraries.
        let speaks = self.cast.actors[node].process.as_ref().is_some_and(|p| p.mark() > 0);
        ensure!(
            !speaks || shim.is_loaded(&name),
            "{name} runs without the library for faults of disks and clocks (see its log)"
        );
        shim.change(&name, change)
    }

    fn reset(&self, pairs: &[(usize, usize)], lasting: Option<Duration>) -> anyhow::Result<()> {
        for (a, b) in pairs {
            self.tell(Command::Reset { a: *a, b: *b, lasting: lasting.unwrap_or_default() })?;
        }
        Ok(())
    }

    fn access(&self, machine: usize, up: u64, down: u64) -> anyhow::Result<()> {
        let queue = self.scenario.topology.seats[machine].port.queue;
        self.tell(Command::Access { machine, up, down, queue })
    }

    fn tell(&self, command: Command) -> anyhow::Result<()> {
        self.network.as_ref().map_or(Ok(()), |network| network.wires().tell(command))
    }

    fn lay(&mut self, owner: Owner, pairs: Vec<(usize, usize)>, change: LinkChange) -> anyhow::Result<()> {
        let Some(network) = &self.network else { return Ok(()) };
        self.wiring.lay(network, owner, pairs, change)
    }

    fn lift(&mut self, owner: Owner) -> anyhow::Result<()> {
        let Some(network) = &self.network else { return Ok(()) };
        self.wiring.lift(network, owner)
    }
}

fn cut() -> LinkChange {
    LinkChange { cut: Some(true), ..LinkChange::default() }
}
