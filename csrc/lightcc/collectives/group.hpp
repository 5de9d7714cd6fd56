// The one interface over which every algorithm is composed: the collectives of one level of the
// grid, for a fixed, ordered set of members.
//
// All members must start the same operations in the same order (send and recv: the two members that
// take part, in an order both agree on). Starting is immediate; the returned Work does the rest,
// and the caller runs the Works of one Group one after another. Different Groups are independent.
//
// Numbers (docs/architecture.md): every element is combined in one order, a function of the group's
// members alone: member order 0, 1, ..., n-1, or that of its levels (grid/grid_shape.hpp). float16
// and bfloat16 accumulate in float32 and round once a level. So results do not depend on bucket,
// chunk, algorithm or SIMD level.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "lightcc/base/types.hpp"
#include "lightcc/collectives/work.hpp"

namespace lightcc {

/// One tensor of a bucket. A bucket is a list of these, never a copy.
struct TensorSpan {
  const std::byte* in = nullptr;  ///< Read only. Null: this member contributes zeros (it joined).
  std::byte* out = nullptr;       ///< May equal `in` (in place). Null: the result is not wanted.
  std::size_t count = 0;          ///< Elements.
};

/// How contributions x_0 .. x_{n-1} become one: post * (pre * x_0 op pre * x_1 op ...).
///
/// The factors are applied in float32 for float16, bfloat16 and float32, in float64 for float64 and
/// the integers; integers are truncated towards zero after each factor, as Horovod does.
struct Reduction {
  DataType dtype = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;  ///< kSum, kMin, kMax or kProduct; averaging is a postscale.
  double prescale = 1.0;
  double postscale = 1.0;
};

/// Whether each element can be combined on its own, as groups do it.
constexpr bool is_elementwise(const Reduction& reduction) {
  return reduction.op != ReduceOp::kAverage && reduction.op != ReduceOp::kAdasum &&
         is_reducible(reduction.dtype, reduction.op) && element_size(reduction.dtype) != 0;
}

/// Pointers handed to a Group are of the memory that its plane serves (engine/plane.hpp). They must
/// stay valid, and inputs unchanged, until the Work is done or dropped. All counts are the same on
/// every member unless said otherwise. Zero is a valid count.
class Group {
 public:
  Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  virtual ~Group() = default;

  virtual int rank() const = 0;  ///< This member's index, 0 .. size() - 1.
  virtual int size() const = 0;

  /// Combines elementwise; every member gets the result. All spans have `reduction.dtype`.
  virtual std::unique_ptr<Work> allreduce(std::vector<TensorSpan> tensors,
                                          const Reduction& reduction) = 0;
  /// Member i gets the combined elements [sum(counts[0..i)), + counts[i]). `in` has sum(counts)
  /// elements (null: zeros), `out` has counts[rank()] and does not overlap `in`.
  virtual std::unique_ptr<Work> reduce_scatter(const std::byte* in,
                                               std::byte* out,
                                               std::vector<std::size_t> counts,
                                               const Reduction& reduction) = 0;
  /// The first half of an allreduce, straight from and to the tensors of a bucket: what a level
  /// above needs to work on the parts in between. The elements of `tensors`, one after another, are
  /// cut into `counts`, one part for each member. Every member's own part is combined into its
  /// tensors' `out` (nowhere null there; may equal `in`). What lies outside of it is only read.
  virtual std::unique_ptr<Work> reduce_scatter_bucket(std::vector<TensorSpan> tensors,
                                                      std::vector<std::size_t> counts,
                                                      const Reduction& reduction) = 0;
  /// The second half. Every member's own part is read from its tensors' `in` (nowhere null there),
  /// and reaches the `out` of all members, the own one included. As with all counts, those of the
  /// tensors are the same on every member.
  virtual std::unique_ptr<Work> allgather_bucket(std::vector<TensorSpan> tensors,
                                                 std::vector<std::size_t> counts,
                                                 DataType dtype) = 0;
  /// Every member gets the concatenation, in member order, of blocks of `bytes[i]` bytes. `in` may
  /// be the right place inside `out`.
  virtual std::unique_ptr<Work> allgather(const std::byte* in,
                                          std::byte* out,
                                          std::vector<std::size_t> bytes) = 0;
  /// `data` of member `root` reaches every member's `data`.
  virtual std::unique_ptr<Work> broadcast(std::byte* data, std::size_t bytes, int root) = 0;
  /// Member i sends send_bytes[j] bytes to member j, which receives them at its i-th place. Blocks
  /// lie one after another in `in` and `out`, which do not overlap. send_bytes[rank()] ==
  /// recv_bytes[rank()].
  virtual std::unique_ptr<Work> alltoall(const std::byte* in,
                                         std::vector<std::size_t> send_bytes,
                                         std::byte* out,
                                         std::vector<std::size_t> recv_bytes) = 0;
  /// To and from one other member; only these two take part.
  virtual std::unique_ptr<Work> send(const std::byte* in, std::size_t bytes, int peer) = 0;
  virtual std::unique_ptr<Work> recv(std::byte* out, std::size_t bytes, int peer) = 0;
  /// Done when every member has started it.
  virtual std::unique_ptr<Work> barrier() = 0;

  /// Where an operation of `bytes` in all is run, so that operations on parts of it, started there,
  /// give its bits. The group that was asked outlives it.
  virtual Group& group_for(std::size_t /*bytes*/) { return *this; }
};

}  // namespace lightcc
