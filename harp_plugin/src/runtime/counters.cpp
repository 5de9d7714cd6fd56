// Counters of a stack as text.
#include <cstdint>
#include <string>

#include "datapath/datapath.hpp"
#include "protocol/session_config.hpp"
#include "runtime/stack.hpp"

namespace harp {

std::string describe_counters(const Stack& stack) {
  const StackStats& turns = stack.stats();
  const DatapathStats wire = stack.datapath().stats();
  const SessionStats sessions = stack.session_stats();
  std::string text;
  const auto add = [&](const char* name, std::uint64_t value) {
    text += (text.empty() ? "" : ", ") + std::string(name) + " " + std::to_string(value);
  };
  add("packets sent", wire.packets_sent);
  add("in batches", wire.batches_sent);
  add("packets received", wire.packets_received);
  add("in batches", wire.batches_received);
  add("send blocked", wire.blocked);
  add("send errors", wire.send_errors);
  add("handed over", wire.handed_over);
  add("bytes copied to send", wire.bytes_copied_out);
  add("copied as received", wire.bytes_copied_in);
  add("placed", turns.bytes_copied);
  add("taken", turns.bytes_taken);
  add("data bytes sent", sessions.data_bytes_sent);
  add("data packets sent", sessions.data_packets_sent);
  add("received", sessions.data_packets_received);
  add("retransmitted by order", sessions.retransmitted_order);
  add("by timeout", sessions.retransmitted_timeout);
  add("tail probes", sessions.tail_probes);
  add("duplicates", sessions.duplicates);
  add("acks sent", sessions.acks_sent);
  add("not authentic", sessions.bad_auth);
  add("not acceptable", sessions.bad_packets);
  add("without room", sessions.no_room);
  add("credit stalls", sessions.credit_stalls);
  add("strangers", turns.strangers);
  add("turns", turns.turns);
  add("idle turns", turns.idle_turns);
  add("sessions begun", turns.sessions_begun);
  add("failed", turns.sessions_failed);
  for (const std::string& session : stack.describe_sessions()) {
    text += "; " + session;
  }
  return text;
}

}  // namespace harp
