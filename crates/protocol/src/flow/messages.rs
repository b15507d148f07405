//! What the layers up to this one do with messages.

use whimbrel_wire::message::Message;

use crate::Time;
use crate::base::Base;
use crate::base::arrival::Arrival;
use crate::base::op::PeerId;
use crate::flow::FlowLayer;
use crate::flow::introduction::{Echoed, Proven};

/// What comes of a message.
pub(crate) enum Handled {
    Done,
    /// Both ends have proven that they sit on a flow.
    Proven(Proven),
    /// It is for somebody above.
    Other(Message),
}

impl FlowLayer {
    /// A peer has said something. `answers`: what goes back to where it came from.
    pub(crate) fn handle_message(
        &mut self,
        now: Time,
        id: PeerId,
        arrival: &Arrival,
        message: Message,
        answers: &mut Vec<Message>,
        base: &mut Base,
    ) -> Handled {
        let proven = match message {
            Message::PathChallenge { token } => {
                answers.push(Message::PathResponse { token, observed: arrival.source });
                let (life, memory) = (base.config().life, base.config().memory);
                // Once for them all: no answer is to be much larger than what it answers.
                let told = [(life, Message::Life { life }), (memory, Message::Memory { memory })];
                for (number, message) in told {
                    if number != 0 && !answers.contains(&message) {
                        answers.push(message);
                    }
                }
                None
            }
            Message::IntroductionRequest { tag } => {
                self.listen_for_introductions(now, id, base);
                self.ask_where(now, id, base);
                answers.push(Message::IntroductionReady { tag });
                None
            }
            Message::IntroductionReady { tag } => {
                self.handle_introduction_ready(now, id, tag, base);
                None
            }
            Message::IntroductionEcho(echo) => match self.handle_echo(now, id, arrival.index(), &echo, base) {
                Echoed::Nothing => None,
                Echoed::Answer(answer) => {
                    answers.push(answer);
                    None
                }
                Echoed::Proven(proven) => Some(proven),
            },
            Message::IntroductionDone { nonce, outcome } => self.handle_introduced(now, id, nonce, outcome, base),
            Message::Pairing(pairing) => {
                answers.extend(self.handle_pairing(now, id, arrival.index(), &pairing, base));
                None
            }
            Message::Paired { nonce, proof, introduced } => {
                self.handle_paired(now, id, arrival.index(), nonce, proof, introduced, base)
            }
            Message::Paused { number, wait, names } => {
                answers.extend(self.handle_paused(now, id, number, wait, &names, base));
                None
            }
            Message::PausedSeen { number } => {
                self.handle_paused_seen(now, id, number, base);
                None
            }
            other => return Handled::Other(other),
        };
        proven.map_or(Handled::Done, Handled::Proven)
    }
}
