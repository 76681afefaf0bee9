//! The driver's only clock: it sleeps until the next deadline, and not longer.

use std::pin::Pin;
use std::time::Instant;
use tokio::time::Sleep;

/// Rings at a deadline. The driver sets it again before each sleep; a new timer is made only if the deadline has moved.
#[derive(Default)]
pub struct Alarm(Option<Pin<Box<Sleep>>>);

impl Alarm {
    /// Returns when it is `due`; never, if there is no deadline.
    pub async fn rings(&mut self, due: Option<Instant>) {
        let Some(due) = due.map(tokio::time::Instant::from_std) else { return std::future::pending().await };
        let sleep = self.0.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(due)));
        if sleep.deadline() != due {
            sleep.as_mut().reset(due);
        }
        sleep.as_mut().await;
        // A timer that has rung does not ring again.
        self.0 = None;
        metrics::counter!("starling_wakes_total").increment(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn it_rings_when_something_is_due_and_follows_what_moves() {
        let (mut alarm, start) = (Alarm::default(), Instant::now());
        let ms = Duration::from_millis;
        let early = tokio::time::timeout(ms(5), alarm.rings(Some(start + ms(3_600_000)))).await;
        assert!(early.is_err(), "an input came before");
        alarm.rings(Some(start + ms(30))).await;
        assert!(start.elapsed() >= ms(30), "what is due has moved");
        alarm.rings(Some(start + ms(50))).await;
        assert!(start.elapsed() >= ms(50));
        alarm.rings(Some(start)).await;
        assert!(tokio::time::timeout(ms(5), alarm.rings(None)).await.is_err(), "nothing is due");
    }
}
