// A small shared map through which the ranks of a new world find each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lightcc/base/clock.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/wire/store_messages.hpp"

namespace lightcc {

/// One client's part in a rendezvous round: clients make something together under one prefix of
/// keys. What a round keeps in the store is removed when the last client has left it.
///
/// A round fails once, for one reason, which every client hears: one that says so, or one that
/// goes away (a process that ends, a connection that breaks) without having left.
///
/// Thread: one. Blocks: until the deadline at most, unless said otherwise.
class RendezvousRound {
 public:
  RendezvousRound() = default;
  RendezvousRound(const RendezvousRound&) = delete;
  RendezvousRound& operator=(const RendezvousRound&) = delete;
  /// Goes away. Blocks: never.
  virtual ~RendezvousRound() = default;

  /// As in Store. Also: why the round has failed.
  virtual Status set(const std::string& key, std::vector<std::byte> value, TimePoint deadline) = 0;
  virtual Result<std::vector<std::byte>> get(const std::string& key, TimePoint deadline) = 0;
  /// Puts in share `index` (at most 1 MiB) of `count` shares, and waits until all are there: one
  /// message and one answer for each client. Returns them in ascending order, each a blob. A share
  /// is kept under `key`/`index`, and all of them under `key`. kTimeout: some are not there.
  virtual Result<std::vector<std::byte>> gather(const std::string& key,
                                                std::uint32_t index,
                                                std::uint32_t count,
                                                std::vector<std::byte> share,
                                                TimePoint deadline) = 0;
  /// Readable when failure() has something to say.
  virtual int event_fd() const = 0;
  /// Why the round has failed, or the store is gone; ok when nobody says so until `deadline`,
  /// which may have passed.
  virtual Status failure(TimePoint deadline) = 0;
  /// Fails the round. Returns the reason that all hear, which is the first one that was given;
  /// `why` where the store does not answer.
  virtual Status fail(const Status& why, TimePoint deadline) = 0;
  /// Leaves in good order; nothing else may be called then. `last`: when all others have left.
  virtual Status leave(bool last, TimePoint deadline) = 0;
};

/// Thread: any. Blocks: until the deadline at most.
class Store {
 public:
  Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  virtual ~Store() = default;

  /// Sets `key` (at most 256 bytes) to `value` (at most 16 MiB), replacing what was there.
  virtual Status set(const std::string& key, std::vector<std::byte> value, TimePoint deadline) = 0;
  /// Waits until `key` exists and returns its value. kTimeout at the deadline, naming the key.
  virtual Result<std::vector<std::byte>> get(const std::string& key, TimePoint deadline) = 0;
  /// Sets `key` to `desired` if its value is `expected` (nothing: if there is no such key). Returns
  /// the value that the key has then, nothing for none: it is `desired` where the caller has
  /// succeeded. Values have at most 64 KiB. Values that no other caller sets, and that never come
  /// back, make the answer certain even where a lost connection has the request repeated.
  virtual Result<std::optional<std::vector<std::byte>>> compare_and_set(
      const std::string& key,
      std::optional<std::vector<std::byte>> expected,
      std::vector<std::byte> desired,
      TimePoint deadline) = 0;
  /// Waits until the keys that start with `prefix`, or what they were last set to, differ from what
  /// a view with `known_state` shows; 0 is no view's, so it answers at once. Changes between two
  /// calls are seen together. kInvalidArgument: the view would have more than 1 MiB.
  virtual Result<StoreView> watch(const std::string& prefix,
                                  std::uint64_t known_state,
                                  TimePoint deadline) = 0;
  /// Fails the round under `prefix`, also for those who come later.
  virtual Status fail(const std::string& prefix, const Status& why, TimePoint deadline) = 0;
  /// Removes every key that starts with `prefix`.
  virtual Status remove_prefix(const std::string& prefix, TimePoint deadline) = 0;
  /// Joins the round under `prefix`. `last_will`: what the others hear should this client go away.
  virtual Result<std::unique_ptr<RendezvousRound>> join(const std::string& prefix,
                                                        const Status& last_will,
                                                        TimePoint deadline) = 0;
};

}  // namespace lightcc
