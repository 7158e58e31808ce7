//! `TicketFlow`: people open tickets, agents answer them, and everyone concerned has an e-mail about it.

pub mod api;
pub mod config;
pub mod desk;
pub mod domain;
pub mod flow;
pub mod health;
pub mod mail;
pub mod observe;
pub mod page;
pub mod run;
pub mod sample;
pub mod worker;
