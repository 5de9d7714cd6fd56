// Requests and answers of the rendezvous store, sans I/O.
//
// A connection carries one request at a time: a frame from the client, then a frame from the server
// (for a get perhaps much later). A frame is a u32 length and a body of that many bytes. Byte
// table: docs/inside/wire-format.md. Not handled: pipelining; a client that wants two answers at
// once opens two connections.
//
// A watch is answered when what is below its prefix differs from what the client has seen. The
// state that says what it has seen is opaque to the client; 0 is the state of nothing.
//
// A gather puts in one of several shares, and is answered with all of them when all are there.
//
// A client that has joined a round (rendezvous/store.hpp) gets one more frame, without asking,
// when the round fails; it may come in the place of an answer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lightcc/base/bytes.hpp"
#include "lightcc/base/status.hpp"

namespace lightcc {

inline constexpr std::size_t kMaxStoreKeyBytes = 256;
inline constexpr std::size_t kMaxStoreValueBytes = std::size_t{16} << 20;
/// Limit of each of the two values of a compare-and-set.
inline constexpr std::size_t kMaxStoreCompareBytes = std::size_t{64} << 10;
/// Limit of all keys and values that one watch sees, with kStoreEntryHeadBytes for each.
inline constexpr std::size_t kMaxStoreViewBytes = std::size_t{1} << 20;
inline constexpr std::size_t kStoreEntryHeadBytes = 8;
/// Limit of one share of a gather. All of them together are one value.
inline constexpr std::size_t kMaxStoreShareBytes = std::size_t{1} << 20;
inline constexpr std::size_t kMaxStoreTextBytes = 1024;
/// Limits of an encoded failure, and of the text in it.
inline constexpr std::size_t kMaxStoreFailureBytes = std::size_t{16} << 10;
inline constexpr std::size_t kMaxStoreFailureTextBytes = std::size_t{8} << 10;
inline constexpr std::size_t kStoreFrameHeadBytes = 4;
/// A body holds the largest set, with room for its kind and lengths.
inline constexpr std::size_t kMaxStoreBodyBytes = kMaxStoreValueBytes + kMaxStoreKeyBytes + 16;
/// What a client says in the handshake, so that no other connection is taken for a store's.
inline constexpr std::string_view kStoreHello = "lightcc store 4";

struct StoreRequest {
  enum class Kind : std::uint8_t {
    kSet = 1,
    kGet = 2,
    kRemovePrefix = 3,
    kJoin = 4,
    kFail = 5,
    kLeave = 6,
    kLeaveLast = 7,
    kCompareAndSet = 8,
    kWatch = 9,
    kGather = 10,
  };
  Kind kind = Kind::kGet;
  std::string key;   ///< Or the prefix.
  Bytes value = {};  ///< For a set, compare-and-set or gather. kJoin, kFail: an encoded failure.
  std::optional<Bytes> expected = {};  ///< For a compare-and-set; nothing: no such key.
  std::uint64_t known_state = 0;       ///< For a watch.
  std::uint32_t index = 0;             ///< For a gather: of the share; less than the count.
  std::uint32_t count = 0;             ///< For a gather: of all shares.
  bool operator==(const StoreRequest&) const = default;
};

/// What was below a prefix at one moment.
struct StoreView {
  std::uint64_t state = 0;  ///< Differs from that of any other moment with other contents.
  std::vector<std::pair<std::string, Bytes>> entries;  ///< Keys and values, ascending by key.
  bool operator==(const StoreView&) const = default;
};

struct StoreAnswer {
  enum class Kind : std::uint8_t {
    kDone = 1,
    kValue = 2,
    kRefused = 3,
    kFailed = 4,
    kAbsent = 5,
    kView = 6,
  };
  Kind kind = Kind::kDone;
  Bytes value = {};                              ///< For kValue. kFailed has an encoded failure.
  ErrorCode code = ErrorCode::kInvalidArgument;  ///< For kRefused: kInvalidArgument or kSystem.
  std::string text = {};                         ///< For kRefused: what to tell the user.
  StoreView view = {};                           ///< For kView.
  bool operator==(const StoreAnswer&) const = default;
};

/// kInvalidArgument when it is too long for the protocol.
Status check_store_key(std::string_view key);
Status check_store_value(std::size_t value_bytes);
/// Checks either value of a compare-and-set.
Status check_store_compare(std::size_t value_bytes);
Status check_store_share(std::size_t share_bytes);

/// Append a whole frame. The request's key and value must have passed the checks above; a longer
/// text than kMaxStoreTextBytes is cut.
void encode_store_request(const StoreRequest& request, Bytes& out);
void encode_store_answer(const StoreAnswer& answer, Bytes& out);
/// The front of the frame that answers a get: the value's bytes follow it as they are.
void encode_store_value_head(std::size_t value_bytes, Bytes& out);

/// The body's length, from the first kStoreFrameHeadBytes. kPeerFailed: empty, or longer than
/// allowed.
Result<std::size_t> decode_store_body_bytes(std::span<const std::byte> head);
/// kPeerFailed: not such a body.
Result<StoreRequest> decode_store_request(std::span<const std::byte> body);
Result<StoreAnswer> decode_store_answer(std::span<const std::byte> body);

/// Why a round failed, as bytes that the store does not look into. A longer text than
/// kMaxStoreFailureTextBytes is cut. `failure` is not ok.
Bytes encode_failure(const Status& failure);
/// The failure; kPeerFailed, saying so, when it does not parse. Never ok.
Status decode_failure(std::span<const std::byte> bytes);

}  // namespace lightcc
