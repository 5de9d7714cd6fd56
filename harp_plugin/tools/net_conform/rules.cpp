// The table of rules; docs/harp/conformance.md explains where each comes from.
#include <array>

#include "report.hpp"

namespace net_conform {
namespace {

constexpr auto kRules = std::to_array<Rule>({
    {"load.symbol", "the table of this version is exported under its name"},
    {"load.entries", "every entry that NCCL calls unchecked is there"},
    {"load.name", "the network has a name"},
    {"load.init-again", "init may be called again, in one process"},
    {"load.devices", "there is a device, and their number stays"},
    {"load.properties-complete", "getProperties writes every field, and nothing else"},
    {"load.properties-values", "properties are what NCCL accepts"},
    {"load.bad-device", "properties of a device that does not exist are refused"},
    {"load.contexts", "a context outlives another one's finalize"},
    {"load.unload", "dlclose and dlopen again, also with threads alive"},

    {"connect.listen", "listen hands out a comm and a handle"},
    {"connect.handle-size", "the handle fits into NCCL's buffer"},
    {"connect.accept-first", "accept without a peer says not yet"},
    {"connect.connect-first", "connect without an accept says not yet, or is through"},
    {"connect.without-accept", "version 4: connect returns without the peer's accept"},
    {"connect.close-listener", "a comm lives on when its listener is closed"},
    {"connect.many-per-listener", "one listener serves several connections"},
    {"connect.both-ways", "two peers connect to each other at once"},
    {"connect.many", "many comms at once, and each its own messages"},
    {"connect.copied-handle", "connect takes the handle at another address each time"},
    {"connect.cycles", "opening and closing leaves no descriptor and no thread behind"},
    {"connect.dead-listener", "connecting to a closed listener is an error, not a hang"},

    {"data.content", "what arrives is what was sent"},
    {"data.recv-size", "a receive's size is the message's, not the buffer's"},
    {"data.send-size", "a send's size is the message's"},
    {"data.beyond-message", "nothing is written beyond the message"},
    {"data.completes", "every message arrives"},
    {"data.zero", "a message of no bytes arrives as one"},
    {"data.unaligned", "buffers start at any address"},
    {"data.order", "messages arrive in order"},
    {"data.full", "a full comm says not now"},
    {"data.sender-first", "messages wait for their receives"},
    {"data.receiver-first", "receives wait for their messages"},
    {"data.one-each", "one message completes one receive"},
    {"data.test-any-order", "requests may be tested in any order"},
    {"data.sizes-null", "test may be asked for no size"},
    {"data.size-slots", "test writes as many sizes as there are buffers"},
    {"data.sent-is-free", "a buffer that was sent may be overwritten"},
    {"data.too-large", "a message larger than its buffer is an error and overwrites nothing"},
    {"data.read-only", "sends only read"},
    {"data.in-parallel", "comms of several threads do not disturb one another"},
    {"data.flush", "iflush completes"},
    {"data.soak", "random sizes for --seconds"},

    {"group.same-tag", "buffers of one tag are filled in order"},
    {"group.tags", "a tag finds its buffer, in any order of sending"},
    {"group.sizes", "each buffer of a group has its own size, zero too"},
    {"group.next", "a message for the next group waits for it"},

    {"memory.register-again", "the same memory may be registered twice"},
    {"memory.register-in-flight", "another thread registers while messages move"},

    {"teardown.orders", "comms may be closed in any order"},
    {"teardown.untested", "requests that nobody tested do not keep close from returning"},
    {"teardown.in-flight", "comms may be closed with messages and registrations under way"},
    {"teardown.close-is-seen", "a receive fails when the sender has closed"},
    {"teardown.peer-stopped", "a peer that sleeps is no error"},
    {"teardown.peer-killed", "a peer that died is an error, within the time limit"},

    {"calls.no-crash", "no call ends the process"},
    {"calls.return", "no call blocks (version 4: but for connect and accept)"},
    {"calls.comm-written", "listen, connect and accept always write the comm, null for not yet"},
    {"calls.request-written", "isend and irecv always write the request, null for not now"},
    {"calls.done-written", "test always writes done, 0 or 1"},
});

}  // namespace

std::span<const Rule> rules() {
  return kRules;
}

}  // namespace net_conform
