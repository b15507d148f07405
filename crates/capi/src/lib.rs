//! libwhimbrel: sockets that can change machines, as C sees them.
//!
//! The header `include/whimbrel.h` is generated from this crate, comments included; a test holds it to it. What a
//! function promises stands with it and in `docs/man/whimbrel.3`. `include/libsockmand.h` puts SOCKMAND's names before
//! it.
//!
//! There is no state but what handles point to: each function opens a connection of its own with the daemon. So all are
//! thread-safe, and go on in a child after fork(2).

mod address;
mod failure;
mod give;
mod migrator;
mod moves;
mod name;
mod socket;
mod text;

pub use failure::wb_reason;
pub use give::{
    wb_give, wb_prepare, wb_receive, wb_received, wb_received_free, wb_receiver, wb_receiver_close, wb_receiver_fd,
    wb_receiver_open,
};
pub use migrator::{
    wb_migrator, wb_migrator_answer, wb_migrator_close, wb_migrator_fd, wb_migrator_next, wb_migrator_open, wb_question,
};
pub use moves::{
    wb_move, wb_move_close, wb_move_fd, wb_move_next, wb_move_process, wb_move_start, wb_outcome, wb_socket_info,
    wb_sockets,
};
pub use name::{
    WB_UUID_TEXT, wb_export, wb_rebuild, wb_rebuild_text, wb_uuid, wb_uuid_format, wb_uuid_of, wb_uuid_parse,
};
pub use socket::{WB_HIDDEN, WB_REQUIRED, wb_bind, wb_socket};
