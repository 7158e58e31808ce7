//! Whether queues and groups have the lanes of what is sent to them: the lane's word is part of the address, so that
//! another number reads the wrong messages, or none.

use std::collections::BTreeSet;

use relevo_broker_nats as nats;
use relevo_broker_rabbitmq::{self as rabbitmq, Binding, BindingTarget, ExchangeKind};
use relevo_core::address_template::{AddressTemplate, PatternWord};

use super::super::problem::Problem;
use super::super::resolved::Reader;
use super::super::settings::Path;

/// Tells queues of RabbitMQ with other lanes than the broker, if messages of these addresses could reach them.
pub(super) fn of_queues(reader: &mut Reader<'_>, path: &Path, config: &rabbitmq::Config, addresses: &[String]) {
    let sections = reader.sections(&path.name("queues"));
    for ((_, at), queue) in sections.into_iter().zip(&config.topology.queues) {
        if misses(queue.lanes, config.lanes, addresses, |address| reaches(config, address, &queue.name)) {
            tell(reader, path, &at, "queue", (queue.lanes, config.lanes));
        }
    }
}

/// Tells groups of NATS with other lanes than the broker, if they could be handed messages of these addresses.
pub(super) fn of_groups(reader: &mut Reader<'_>, path: &Path, config: &nats::Config, addresses: &[String]) {
    let sections = reader.sections(&path.name("groups"));
    for ((_, at), group) in sections.into_iter().zip(&config.topology.groups) {
        let stream = config.topology.streams.iter().find(|stream| stream.name == group.stream);
        let is_theirs = config.stream.as_ref().is_none_or(|expected| *expected == group.stream);
        let reads = |address: &str| match (group.subjects.as_slice(), stream) {
            ([], None) => true,
            ([], Some(stream)) => stores(&stream.subjects, address),
            (subjects, _) => stores(subjects, address),
        };
        if is_theirs && misses(group.lanes, config.lanes, addresses, reads) {
            tell(reader, path, &at, "group", (group.lanes, config.lanes));
        }
    }
}

/// Whether one with the lanes `here` does not get what is sent with the lanes `sent`, and seems to be meant to.
///
/// One without lanes may well get what has them, all of it, if it is bound by a pattern that leaves room for their word.
fn misses(here: Option<u16>, sent: Option<u16>, addresses: &[String], gets: impl Fn(&str) -> bool) -> bool {
    let bare = || addresses.iter().any(|address| gets(address));
    let with_word = || addresses.iter().any(|address| gets(&format!("{address}.0")));
    match (here, sent) {
        _ if here == sent => false,
        (Some(_), _) => bare() || with_word(),
        (None, _) => addresses.iter().any(|address| gets(address) && !gets(&format!("{address}.0"))),
    }
}

fn tell(reader: &mut Reader<'_>, broker: &Path, at: &Path, what: &str, (here, sent): (Option<u16>, Option<u16>)) {
    let lanes = |lanes: Option<u16>| lanes.map_or_else(|| "no lanes".to_owned(), |lanes| format!("`lanes = {lanes}`"));
    let problem =
        Problem::new(format!("`{at}` has {}, and what is sent to that {what} has {}", lanes(here), lanes(sent)));
    let key = at.name("lanes");
    let at = if reader.is_set(&key) { key } else { at.clone() };
    reader.problem(&at, problem.hint(format!("the same number in `{broker}` and here, or in neither")));
}

fn stores(subjects: &[String], address: &str) -> bool {
    let template = AddressTemplate::new(address);
    subjects.iter().any(|subject| template.can_match(&words(subject)))
}

/// Whether messages of an address could come to a queue, as far as the configuration's own exchanges and bindings tell.
fn reaches(config: &rabbitmq::Config, address: &str, queue: &str) -> bool {
    let (exchange, key) = address.split_once('/').unwrap_or((&config.exchange, address));
    let (first, key) = (AddressTemplate::new(exchange), AddressTemplate::new(key));
    if first.can_equal("") && key.can_equal(queue) {
        return true;
    }
    let bindings = &config.topology.bindings;
    let mut open: Vec<&str> =
        bindings.iter().map(|it| it.exchange.as_str()).filter(|name| first.can_equal(name)).collect();
    let mut visited = BTreeSet::new();
    while let Some(exchange) = open.pop() {
        if !visited.insert(exchange) {
            continue;
        }
        for binding in bindings.iter().filter(|it| it.exchange == exchange && takes(config, it, &key)) {
            match &binding.to {
                BindingTarget::Queue(name) if name == queue => return true,
                BindingTarget::Queue(_) => {}
                BindingTarget::Exchange(name) => open.push(name),
            }
        }
    }
    false
}

/// Whether a binding could take such a routing key. Of exchanges that somebody else declares the kind is not known.
fn takes(config: &rabbitmq::Config, binding: &Binding, key: &AddressTemplate) -> bool {
    let kind = config.topology.exchanges.iter().find(|it| it.name == binding.exchange).map(|it| it.kind);
    match kind {
        // They do not look at the key, so that a queue there cannot have lanes, and its number says nothing.
        Some(ExchangeKind::Fanout | ExchangeKind::Headers) => matches!(binding.to, BindingTarget::Exchange(_)),
        Some(ExchangeKind::Direct) => key.can_equal(&binding.key),
        Some(ExchangeKind::Topic) | None => key.can_match(&words(&binding.key)),
    }
}

/// The words of a binding's key or of a subject.
fn words(pattern: &str) -> Vec<PatternWord<'_>> {
    let word = |word| match word {
        "*" => PatternWord::One,
        "#" => PatternWord::ZeroOrMore,
        ">" => PatternWord::OneOrMore,
        text => PatternWord::Literal(text),
    };
    if pattern.is_empty() { Vec::new() } else { pattern.split('.').map(word).collect() }
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
