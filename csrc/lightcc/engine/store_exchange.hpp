// All-gather of small values through the store; and how ranks that make a world tell each other why
// they cannot.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lightcc/base/bytes.hpp"
#include "lightcc/base/clock.hpp"
#include "lightcc/base/export.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/rendezvous/store.hpp"

namespace lightcc {

/// A rank among those that make a world.
struct Joining {
  Store& store;
  RendezvousRound& round;
  int rank = 0;
  int size = 1;
  TimePoint deadline;
  std::string limit;  ///< What the time until then is called.
};

/// Publishes `value` under `key`/`rank` and returns the values of all ranks: one message to the
/// store for each rank. Errors: kTimeout, naming the ranks that did not come; why the round failed.
/// Blocks: until the deadline (a little longer elsewhere than on rank 0).
Result<std::vector<Bytes>> exchange(const Joining& joining, const std::string& key, Bytes value);

/// Waits for what comes of something on this rank; nothing: it goes on. Thread: the caller's.
using Made = std::function<std::optional<Status>(Duration patience)>;
/// Waits until `made` says what came of it on this rank, or another rank that it failed there. Then
/// returns why it failed on some rank, with its number; empty: all made it. All ranks get the same.
/// `joining`: null for a world of one rank. Errors: of exchange(), to which others may come later
/// by `patience`. Blocks: until the last one has come.
Result<std::string> agree(const Joining* joining,
                          const std::string& key,
                          const Made& made,
                          Duration patience);

/// Tells all ranks why this one cannot join, and returns what it should say itself: `seen`, or the
/// first reason that any rank gave where `seen` may be a consequence of that. Blocks: for seconds.
Status give_up(const Joining& joining, const Status& seen);

/// Tells all ranks of the round under `prefix` why rank `rank` does not even begin. Best
/// effort. Blocks: until `deadline`.
LIGHTCC_EXPORT void stay_away(
    Store& store, const std::string& prefix, int rank, const Status& why, TimePoint deadline);

}  // namespace lightcc
