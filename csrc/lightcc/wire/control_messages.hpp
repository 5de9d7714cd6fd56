// What ranks and the sequencer tell each other: reports go up the control tree, commands come down.
//
// A frame is a 4-byte length, a 1-byte kind and a payload; byte tables in
// docs/inside/wire-format.md. Frames are only parsed on connections that have proved the job
// secret, and still every length is checked: a frame that does not parse ends the world with a
// clear error, never memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "lightcc/base/bytes.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/base/types.hpp"

namespace lightcc {

inline constexpr std::size_t kMaxFrameBytes = std::size_t{64} << 20;
inline constexpr std::size_t kMaxNameBytes = 4096;
inline constexpr std::size_t kMaxDimensions = 64;
inline constexpr std::size_t kMaxObjectionBytes = 8192;
inline constexpr std::uint32_t kNoSlot = 0xffffffff;
inline constexpr std::size_t kMaxInlineBytes = std::size_t{64} << 10;  ///< Limit for one tensor.
inline constexpr std::int32_t kAnySource = -1;                         ///< In the place of a peer.

/// What all ranks of an operation must agree on.
struct Signature {
  OpType op = OpType::kAllreduce;
  DataType dtype = DataType::kFloat32;
  MemoryKind memory = MemoryKind::kHost;
  ReduceOp reduce_op = ReduceOp::kSum;
  std::uint32_t process_set = 0;
  std::int32_t root_or_peer = -1;
  double prescale = 1.0;
  double postscale = 1.0;
  std::string name;
  bool is_automatic = false;     ///< The engine numbered the name: it never comes back.
  std::string group;             ///< Name of the all-or-nothing group, or empty.
  std::uint32_t group_size = 0;  ///< Members of that group.
  FusionWish fusion;
  std::vector<std::int64_t> shape;
  std::optional<CompressionSpec> compression;  ///< Allreduce: compressed like this.
  /// By how many steps this rank's residual is ahead of this world's all-reduces of the tensor
  /// (compression/residual/step_counts.hpp). Ranks may differ: the greatest number counts.
  std::int64_t steps_ahead = 0;
  /// Where an open receive finds a send without a name. A receive with a mailbox is *open*: it
  /// takes the first send there, from `root_or_peer` or from anybody.
  std::string mailbox;

  bool is_open_receive() const { return op == OpType::kRecv && !mailbox.empty(); }
  bool operator==(const Signature&) const = default;
};

/// One rank's wish. The shape in `signature` is this rank's own.
struct Request {
  Signature signature;
  std::vector<std::int64_t> splits;  ///< Alltoall: rows for each member.
  std::vector<std::int32_t> ranks;   ///< kAddProcessSet: the members.
  /// Why this rank cannot carry it out, and then nobody does; empty: it can.
  std::string objection{};
  bool operator==(const Request&) const = default;
};

/// A request that is, field for field, the one this rank last made under `slot`.
struct ReadySlot {
  std::uint32_t slot = 0;
  bool operator==(const ReadySlot&) const = default;
};

/// The rank wants to leave the world.
struct Leave {
  bool operator==(const Leave&) const = default;
};

/// What a rank contributes to a small all-reduce, on its way beside the rank's report
/// (control/inline_allreduce.hpp).
struct InlineInput {
  std::int32_t rank = -1;
  Bytes data;
  bool operator==(const InlineInput&) const = default;
};

/// What one rank reports, or all members of the process set at or below `rank` in the tree of
/// control links, but for those that have joined.
struct Report {
  using What = std::variant<Request, ReadySlot, Leave>;

  std::uint32_t rank = 0;
  What what;
  std::int32_t last_rank = -1;        ///< Which rank of a subtree asked last.
  std::vector<InlineInput> inputs{};  ///< Inputs from none, some or all of its ranks.

  bool is_of_subtree() const { return last_rank >= 0; }
  bool operator==(const Report&) const = default;
};

/// One tensor of a bucket as the sequencer announces it.
///
/// Either `slot` alone (every rank knows what it stands for), or a full signature, which gives the
/// slot its meaning when there is one. `per_member` holds what may differ between members: first
/// dimensions (allgather), or the members' splits one after another (alltoall); empty: as last
/// time. `result`: the all-reduce has been carried out; empty: it is to be run.
struct AnnouncedTensor {
  std::uint32_t slot = kNoSlot;
  std::optional<Signature> signature;
  std::vector<std::int64_t> per_member;
  Bytes result{};
  bool operator==(const AnnouncedTensor&) const = default;
};

/// Run one collective over a bucket of tensors.
struct Execute {
  std::uint64_t sequence = 0;
  std::uint32_t process_set = 0;
  std::uint32_t lane = 0;
  std::vector<AnnouncedTensor> tensors;
  bool operator==(const Execute&) const = default;
};

/// One operation failed in negotiation, on every rank that asked for it.
struct FailOperation {
  std::uint32_t process_set = 0;
  std::string name;
  ErrorCode code = ErrorCode::kMismatch;
  std::string message;
  bool operator==(const FailOperation&) const = default;
};

/// The open receive of this name takes the message of `source`; it goes on under the send's name.
struct MatchReceive {
  std::uint32_t process_set = 0;
  std::string receive;
  std::string send;
  std::int32_t source = -1;
  bool operator==(const MatchReceive&) const = default;
};

struct AddProcessSet {
  std::uint32_t id = 0;
  std::string name;  ///< Name of the operation that asked for it.
  std::vector<std::int32_t> ranks;
  bool operator==(const AddProcessSet&) const = default;
};

struct RemoveProcessSet {
  std::uint32_t id = 0;
  std::string name;
  bool operator==(const RemoveProcessSet&) const = default;
};

/// Every rank has joined.
struct AllJoined {
  std::int32_t last_rank = -1;
  bool operator==(const AllJoined&) const = default;
};

/// The world ends in good order; `rank` asked first.
struct ShutDown {
  std::int32_t rank = -1;
  bool operator==(const ShutDown&) const = default;
};

using Command = std::variant<Execute,
                             FailOperation,
                             AddProcessSet,
                             RemoveProcessSet,
                             AllJoined,
                             ShutDown,
                             MatchReceive>;

/// The world ends in error. Travels both ways.
struct WorldError {
  ErrorCode code = ErrorCode::kInternal;
  std::int32_t rank = -1;
  std::string message;
  bool operator==(const WorldError&) const = default;
};

/// "My progress loop is alive."
struct Heartbeat {
  bool waits = false;  ///< The sender, or a rank that it speaks for, waits for others.
  bool operator==(const Heartbeat&) const = default;
};

using Frame = std::variant<std::vector<Report>, std::vector<Command>, WorldError, Heartbeat>;

/// Appends a signature as requests carry it: equal bytes mean equal signatures.
void encode_signature(const Signature& signature, Bytes& out);
/// Appends the frame, length included.
void encode_frame(const Frame& frame, Bytes& out);
/// Parses a frame's kind and payload (without the length). kPeerFailed says what is wrong with it.
Result<Frame> decode_frame(std::span<const std::byte> bytes);

}  // namespace lightcc
