// One client of the TCP store's server: what it has sent, and what it is to be sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "lightcc/base/bytes.hpp"
#include "lightcc/base/unique_fd.hpp"
#include "lightcc/rendezvous/round_table.hpp"
#include "lightcc/rendezvous/store_map.hpp"
#include "lightcc/wire/store_messages.hpp"

namespace lightcc::detail {

/// Gets and gathers that wait: the key, and the tag of the client that asked.
using Parked = std::multimap<std::string, std::uint64_t>;

/// Thread: one. Blocks: never.
struct ServedClient {
  /// kWatch: it waits for a change. kStay: it leaves its round as the last one, and there are
  /// others.
  enum class Stage : std::uint8_t { kReadHead, kReadBody, kParked, kWatch, kStay, kWrite };

  /// What epoll is to watch for it.
  std::uint32_t wanted_events() const;
  /// Reads until `in` has `total_bytes`, one step at a time. `moved`: whether anything came. False:
  /// the client is gone.
  bool read_towards(std::size_t total_bytes, bool& moved);
  /// Begins to write; write_answer() goes on.
  void answer(const StoreAnswer& said);
  void answer_value(StoreMap::Value value);
  /// As read_towards().
  bool write_answer(bool& moved);

  UniqueFd fd;
  Stage stage = Stage::kReadHead;
  Bytes in;
  std::size_t body_bytes = 0;
  Parked::iterator parked_at;  ///< Valid when parked.
  Bytes out_head;              ///< Written first, then the value.
  StoreMap::Value out_value;
  std::size_t sent_bytes = 0;
  std::uint32_t events = 0;          ///< What epoll watches for it.
  std::optional<std::string> round;  ///< That it has joined.
  RoundTable::Failure last_will;
  bool has_heard = false;  ///< It knows that the round failed, or is about to.

 private:
  void start_writing(StoreMap::Value value);
};

}  // namespace lightcc::detail
