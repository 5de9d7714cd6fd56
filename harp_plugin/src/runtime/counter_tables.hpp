// The counters of stacks and sessions, as base/counter.hpp wants them; a datapath's are in
// datapath/wire_counters.hpp.
#pragma once

#include <array>
#include <cstdint>

#include "base/counter.hpp"
#include "protocol/session_config.hpp"
#include "runtime/stack.hpp"

namespace harp {

inline constexpr std::array kStackCounters{
    Counter<StackStats>{&StackStats::turns, "turns", "", "Turns of the stack"},
    Counter<StackStats>{&StackStats::idle_turns, "idle_turns", "", "Turns with nothing to do"},
    Counter<StackStats>{
        &StackStats::strangers, "strangers", "packets", "Packets for no session or listener"},
    Counter<StackStats>{
        &StackStats::bytes_copied, "bytes_copied", "bytes", "Payload placed into receive buffers"},
    Counter<StackStats>{
        &StackStats::bytes_taken, "bytes_taken", "bytes", "Payload shown to takers, not copied"},
    Counter<StackStats>{
        &StackStats::sessions_begun, "sessions_begun", "sessions", "Sessions, both ends"},
    Counter<StackStats>{
        &StackStats::sessions_failed, "sessions_failed", "sessions", "Sessions ended by an error"},
};
static_assert(sizeof(StackStats) == kStackCounters.size() * sizeof(std::uint64_t));

inline constexpr std::array kSessionCounters{
    Counter<SessionStats>{
        &SessionStats::packets_sent, "packets_sent", "packets", "Packets sent, of any kind"},
    Counter<SessionStats>{
        &SessionStats::packets_received, "packets_received", "packets", "Authentic packets"},
    Counter<SessionStats>{&SessionStats::data_bytes_sent,
                          "data_bytes_sent",
                          "bytes",
                          "Payload sent, retransmissions included"},
    Counter<SessionStats>{&SessionStats::data_bytes_retransmitted,
                          "data_bytes_retransmitted",
                          "bytes",
                          "Payload sent again"},
    Counter<SessionStats>{
        &SessionStats::data_packets_sent, "data_packets_sent", "packets", "Packets with payload"},
    Counter<SessionStats>{&SessionStats::data_packets_received,
                          "data_packets_received",
                          "packets",
                          "New packets with payload"},
    Counter<SessionStats>{
        &SessionStats::data_bytes_received, "data_bytes_received", "bytes", "Their payload"},
    Counter<SessionStats>{&SessionStats::retransmitted_order,
                          "retransmitted_order",
                          "packets",
                          "Sent again: later ones of the path had come"},
    Counter<SessionStats>{&SessionStats::retransmitted_timeout,
                          "retransmitted_timeout",
                          "packets",
                          "Sent again: nothing had come for too long"},
    Counter<SessionStats>{
        &SessionStats::tail_probes, "tail_probes", "packets", "Last packets sent again early"},
    Counter<SessionStats>{
        &SessionStats::duplicates, "duplicates", "packets", "Packets that had come before"},
    Counter<SessionStats>{&SessionStats::acks_sent, "acks_sent", "packets", "Acknowledgements"},
    Counter<SessionStats>{
        &SessionStats::heartbeats_sent, "heartbeats_sent", "packets", "Signs of life"},
    Counter<SessionStats>{
        &SessionStats::probes_sent, "probes_sent", "packets", "Probes of paths in quarantine"},
    Counter<SessionStats>{
        &SessionStats::bad_auth, "bad_auth", "packets", "Damaged or forged packets"},
    Counter<SessionStats>{&SessionStats::bad_packets,
                          "bad_packets",
                          "packets",
                          "Authentic, but not acceptable packets"},
    Counter<SessionStats>{&SessionStats::no_room,
                          "no_room",
                          "packets",
                          "Dropped: no receive was posted, and no room for more"},
    Counter<SessionStats>{&SessionStats::credit_stalls,
                          "credit_stalls",
                          "",
                          "Times that data began to wait for the peer's receives"},
    Counter<SessionStats>{&SessionStats::paths_quarantined,
                          "paths_quarantined",
                          "",
                          "Times that a path was given up for a while"},
    Counter<SessionStats>{&SessionStats::paths_moved,
                          "paths_moved",
                          "",
                          "Times that a path moved to another port, for the peer's queues"},
};
static_assert(sizeof(SessionStats) == kSessionCounters.size() * sizeof(std::uint64_t));

}  // namespace harp
