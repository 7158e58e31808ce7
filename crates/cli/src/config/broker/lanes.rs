//! The report of a queue or group with other lanes than the messages that it would receive.

use relevo_core::adapter::LaneMismatch;

use super::super::problem::Problem;
use super::super::resolved::Reader;
use super::super::settings::Path;

/// Reports the mismatch at the object's section, which the user named.
pub(super) fn report(reader: &mut Reader<'_>, broker: &Path, mismatch: &LaneMismatch) {
    let LaneMismatch { object, index, lanes, published_lanes } = mismatch;
    let (_, at) = reader.sections(&broker.name(&format!("{object}s"))).swap_remove(*index);
    let shown = |lanes: &Option<u16>| lanes.map_or_else(|| "no lanes".to_owned(), |lanes| format!("`lanes = {lanes}`"));
    let (lanes, published) = (shown(lanes), shown(published_lanes));
    let problem = Problem::new(format!("`{at}` has {lanes}, and what is sent to that {object} has {published}"));
    let key = at.name("lanes");
    let at = if reader.is_set(&key) { key } else { at };
    reader.problem(&at, problem.hint(format!("the same number in `{broker}` and here, or in neither")));
}

#[cfg(test)]
mod tests {
    use super::super::super::tests::problems;
    use super::super::tests::{NATS, RABBIT, text};

    /// What is told of a broker with these lanes and a piece of topology, with a route from `orders.**`.
    fn told(broker: &str, lanes: &str, piece: &str) -> Vec<String> {
        let route = "[[outboxes.shop.destinations.main.routes]]\ntopic = \"orders.**\"\n";
        problems(&text(&format!("{broker}\n{lanes}"), &format!("{piece}\n{route}")))
    }

    #[test]
    fn a_queue_with_other_lanes_than_what_is_sent_to_it_is_told() {
        let broker = format!("{RABBIT}\nexchange = \"shop\"");
        let queue = |bind: &str, lanes: &str| format!("[BROKER.queues.q]\nbind = [\"{bind}\"]\n{lanes}");
        let through = "[BROKER.exchanges.far]\nbind = [\"shop/#\"]\n";
        let fanout = "[BROKER.exchanges.shop]\nkind = \"fanout\"\n";
        for (lanes, piece, what) in [
            (
                "lanes = 4",
                queue("shop/orders.#", "lanes = 8"),
                "has `lanes = 8`, and what is sent to that queue has `lanes = 4`",
            ),
            ("lanes = 4", queue("shop/orders.eu", ""), "has no lanes, and what is sent to that queue has `lanes = 4`"),
            ("", queue("shop/#", "lanes = 2"), "has `lanes = 2`, and what is sent to that queue has no lanes"),
            ("", through.to_owned() + &queue("far/#", "lanes = 2"), "has `lanes = 2`"),
        ] {
            let told = told(&broker, lanes, &piece);
            assert!(told.len() == 1 && told[0].contains(what), "{lanes} {piece}: {told:?}");
        }
        for (lanes, piece) in [
            ("lanes = 4", queue("shop/orders.#", "lanes = 4")),
            ("lanes = 4", queue("shop/invoices.#", "lanes = 8")),
            ("lanes = 4", queue("shop/#", "")),
            ("", queue("other/#", "lanes = 2")),
            ("", queue("shop/orders.#", "")),
            ("lanes = 4", fanout.to_owned() + &queue("shop/", "")),
        ] {
            assert_eq!(told(&broker, lanes, &piece), [""; 0], "{lanes} {piece}");
        }
    }

    #[test]
    fn a_group_with_other_lanes_than_what_is_sent_to_it_is_told() {
        let pieces = |more: &str| {
            format!("[BROKER.streams.s]\nsubjects = [\"orders.>\"]\n[BROKER.groups.g]\nstream = \"s\"\n{more}")
        };
        let orders = "subjects = [\"orders\", \"orders.eu\"]";
        for (lanes, group, what) in [
            ("lanes = 4", "lanes = 8", "has `lanes = 8`, and what is sent to that group has `lanes = 4`"),
            ("lanes = 4", "", "has no lanes, and"),
            ("", "lanes = 2", "and what is sent to that group has no lanes"),
        ] {
            let told = told(NATS, lanes, &pieces(&format!("{orders}\n{group}")));
            assert!(told.len() == 1 && told[0].contains(what), "{lanes} {group}: {told:?}");
        }
        assert_eq!(told(NATS, "lanes = 4", &pieces("")), [""; 0], "it reads all of the stream, whatever the lane");
        let invoices = "lanes = 8\nsubjects = [\"invoices\"]".to_owned();
        for (lanes, group) in
            [("lanes = 4", format!("lanes = 4\n{orders}")), ("", String::new()), ("lanes = 4", invoices)]
        {
            assert_eq!(told(NATS, lanes, &pieces(&group)), [""; 0], "{lanes} {group}");
        }
        let elsewhere = pieces(&format!("lanes = 8\n{orders}"));
        assert_eq!(told(NATS, "lanes = 4\nstream = \"other\"", &elsewhere), [""; 0]);
    }
}
