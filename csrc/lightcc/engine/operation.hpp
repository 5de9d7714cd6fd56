// What a front end submits, and what it gets: one Operation in, one Outcome out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lightcc/base/export.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/base/tensor_ref.hpp"
#include "lightcc/collectives/device_end.hpp"
#include "lightcc/engine/loop_bell.hpp"
#include "lightcc/wire/control_messages.hpp"

namespace lightcc {

/// Memory for an output, called once when its shape is known, on the thread that drives the
/// progress loop. It must not call the World. The memory stays valid until the operation is done.
/// An error ends the operation on this rank alone; other ranks get their results.
using Allocator =
    std::function<Result<void*>(const std::vector<std::int64_t>& shape, std::size_t bytes)>;

/// Says when an input holds its values, and its memory may be used.
///
/// The thread that drives asks again and again, so the answer must not block. An operation of other
/// ranks waits for this one meanwhile. An error ends the world: other ranks count on the input.
class ReadyEvent {
 public:
  ReadyEvent() = default;
  ReadyEvent(const ReadyEvent&) = delete;
  ReadyEvent& operator=(const ReadyEvent&) = delete;
  virtual ~ReadyEvent() = default;
  virtual Result<bool> is_ready() = 0;
  /// Has `bell` rung when it is ready, or soon after. False: nobody rings.
  virtual bool rings(const std::shared_ptr<LoopBell>& /*bell*/) { return false; }
};

/// One operation as this rank asks for it. Memory stays the caller's; it must stay valid, and
/// inputs unchanged, until the operation is done, and finished where its Outcome has an end.
struct Operation {
  /// What the ranks must agree on, and this rank's part of it. The caller sets operation, process
  /// set, reduction, factors, root or peer, compression, fusion, splits and ranks. The engine sets
  /// name, group, and what `input` says of itself.
  Request request;
  /// Matches this operation across ranks; unique while in flight. None: the engine numbers it, and
  /// ranks must submit such operations in one order. Ignored for barriers, joins and set changes.
  std::optional<std::string> name;
  /// Operations without a name are numbered for each sequence, and apart from those of others.
  /// Ranks must agree on the order within a sequence, but not on that of two sequences.
  std::string sequence;
  /// Recv: of the messages without a name in this sequence, the one that was sent first, whoever
  /// sent it. Receives of one sequence take messages in the order in which they were submitted.
  bool from_any = false;
  TensorRef input;  ///< Recv: what is expected.
  /// Where the result goes, which may be `input` for all-reduce, broadcast and recv. Its number of
  /// elements must be the result's. Where only the negotiation tells that number (allgather,
  /// alltoall, reducescatter), a wrong one fails the operation on this rank alone.
  std::optional<TensorRef> output;
  Allocator allocator;                ///< Used without `output`. Empty: an OutputBuffer is made.
  std::shared_ptr<ReadyEvent> ready;  ///< Null: the input is ready now.
};

/// What the operation reads, if that lies in the host's memory now; else nothing.
std::span<const std::byte> input_at_hand(const Operation& operation);

/// The default output: memory that the engine allocates.
class LIGHTCC_EXPORT OutputBuffer {
 public:
  /// Takes memory of the host, 64-byte aligned.
  explicit OutputBuffer(std::size_t bytes);
  using LastStream = std::shared_ptr<std::optional<std::uintptr_t>>;
  /// Keeps memory of any kind. `stream` is for what frees it.
  OutputBuffer(std::shared_ptr<std::byte> memory, std::size_t bytes, LastStream stream = nullptr);
  ~OutputBuffer() = default;
  OutputBuffer(const OutputBuffer&) = delete;
  OutputBuffer& operator=(const OutputBuffer&) = delete;
  std::byte* data() { return memory_.get(); }  ///< Null: there was no memory.
  std::size_t size_bytes() const { return bytes_; }
  /// What `stream` of the GPU has been given when the memory goes may still use it.
  void hand_to(std::uintptr_t stream) {
    if (last_stream_ != nullptr) {
      *last_stream_ = stream;
    }
  }

 private:
  LastStream last_stream_;
  std::shared_ptr<std::byte> memory_;
  std::size_t bytes_;
};

/// What became of one Operation.
struct Outcome {
  std::shared_ptr<OutputBuffer> output;       ///< Where there was no output and no allocator.
  std::vector<std::int64_t> shape;            ///< The output's.
  std::vector<std::int64_t> received_splits;  ///< Alltoall: rows from each member.
  std::int32_t value = 0;  ///< Join: last rank; kAddProcessSet: the id; recv: the source.
  /// Null: it is finished. Else a device has been given all of it, and memory that it touches has
  /// to stay until its end no longer uses it.
  std::shared_ptr<DeviceEnd> end;
};

}  // namespace lightcc
