#include "lightcc_cuda/nccl/group.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/base/types.hpp"
#include "lightcc/collectives/checked_group.hpp"

namespace lightcc::cuda {
namespace {

NcclOp nccl_op_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kMin:
      return kNcclMin;
    case ReduceOp::kMax:
      return kNcclMax;
    case ReduceOp::kProduct:
      return kNcclProduct;
    default:
      return kNcclSum;
  }
}

/// None: int16, uint16 and bool, in which NCCL does not compute.
std::optional<NcclType> nccl_type_of(DataType dtype) {
  switch (dtype) {
    case DataType::kUint8:
      return kNcclUint8;
    case DataType::kInt8:
      return kNcclInt8;
    case DataType::kInt32:
      return kNcclInt32;
    case DataType::kInt64:
      return kNcclInt64;
    case DataType::kFloat16:
      return kNcclFloat16;
    case DataType::kFloat32:
      return kNcclFloat32;
    case DataType::kFloat64:
      return kNcclFloat64;
    case DataType::kBfloat16:
      return kNcclBfloat16;
    default:
      return std::nullopt;
  }
}

/// An average `is_scaled`.
bool has_reduction(DataType dtype, ReduceOp op, bool is_scaled) {
  const bool is_sum = op == ReduceOp::kSum || op == ReduceOp::kAverage;
  return op != ReduceOp::kAdasum && is_reducible(dtype, op) && nccl_type_of(dtype).has_value() &&
         (!is_scaled || (is_sum && is_floating_point(dtype)));
}

bool has_factors(double prescale, double postscale) {
  return prescale != 1.0 || postscale != 1.0;
}

/// A reduction as NCCL carries it out.
struct NcclReduction {
  NcclType type = kNcclFloat32;
  NcclOp op = kNcclSum;
  double factor = 1.0;
  std::size_t element = 4;

  /// To be called outside of a group of calls.
  Result<NcclOp> op_for(const NcclCalls& calls) const {
    return factor == 1.0 ? Result<NcclOp>(op) : calls.scaled_sum(type, factor);
  }
};

/// NCCL's words for `reduction`. Errors: kInvalidArgument, if it has none.
Result<NcclReduction> nccl_reduction_of(const Reduction& reduction) {
  if (!has_reduction(
          reduction.dtype, reduction.op, has_factors(reduction.prescale, reduction.postscale))) {
    return make_error(ErrorCode::kInvalidArgument,
                      "NCCL has no such reduction of %s, or not with these factors",
                      data_type_name(reduction.dtype));
  }
  return NcclReduction{.type = *nccl_type_of(reduction.dtype),
                       .op = nccl_op_of(reduction.op),
                       .factor = reduction.prescale * reduction.postscale,
                       .element = element_size(reduction.dtype)};
}

/// A part of a tensor that belongs to one member.
struct Piece {
  const std::byte* in;
  std::byte* out;
  std::size_t count;
  int member;
};

/// For an output that NCCL does not write.
std::byte* unused(const Piece& piece) {
  return const_cast<std::byte*>(piece.in);  // NOLINT(cppcoreguidelines-pro-type-const-cast)
}

/// What is left of `tensors` when their elements, one after another, are cut into `counts`.
std::vector<Piece> cut(const std::vector<TensorSpan>& tensors,
                       const std::vector<std::size_t>& counts,
                       std::size_t element) {
  std::vector<Piece> pieces;
  std::size_t tensor = 0;
  std::size_t at = 0;  // In the tensor.
  for (std::size_t member = 0; member < counts.size(); ++member) {
    for (std::size_t left = counts[member]; left > 0 && tensor < tensors.size();) {
      const TensorSpan& span = tensors[tensor];
      const std::size_t count = std::min(left, span.count - at);
      if (count > 0) {
        pieces.push_back({.in = span.in == nullptr ? nullptr : span.in + at * element,
                          .out = span.out == nullptr ? nullptr : span.out + at * element,
                          .count = count,
                          .member = static_cast<int>(member)});
      }
      left -= count;
      at += count;
      if (at == span.count) {
        ++tensor;
        at = 0;
      }
    }
  }
  return pieces;
}

/// Puts memory in the place of what a member that has joined does not have: its input is zeros, and
/// nobody wants its result.
template <typename Part>
Status fill_in(const NcclCalls& calls, std::size_t element, std::vector<Part>& parts) {
  std::size_t bytes = 0;
  for (const Part& part : parts) {
    bytes += part.in == nullptr || part.out == nullptr ? part.count * element : 0;
  }
  if (bytes == 0) {
    return {};
  }
  LIGHTCC_ASSIGN_OR_RETURN(std::byte * next, calls.zeros(bytes));
  for (Part& part : parts) {
    if (part.in == nullptr || part.out == nullptr) {
      part.in = part.in == nullptr ? next : part.in;
      part.out = part.out == nullptr ? next : part.out;
      next += part.count * element;
    }
  }
  return {};
}

std::size_t sum_of(const std::vector<std::size_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

bool are_equal(const std::vector<std::size_t>& counts) {
  return std::ranges::all_of(counts, [&](std::size_t count) { return count == counts.front(); });
}

/// Behind the checks of CheckedGroup.
class NcclGroup final : public Group {
 public:
  NcclGroup(NcclComms& comms, std::shared_ptr<NcclComm> comm, int rank, int size)
      : comms_(comms), comm_(std::move(comm)), rank_(rank), size_(size) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::unique_ptr<Work> allreduce(std::vector<TensorSpan> tensors,
                                  const Reduction& reduction) override {
    const Result<NcclReduction> known = nccl_reduction_of(reduction);
    if (!known.ok()) {
      return std::make_unique<FailedWork>(known.status());
    }
    std::erase_if(tensors, [](const TensorSpan& span) { return span.count == 0; });
    return start(
        "ncclAllReduce",
        [tensors = std::move(tensors), known = *known](const NcclCalls& calls) mutable {
          LIGHTCC_ASSIGN_OR_RETURN(const NcclOp op, known.op_for(calls));
          LIGHTCC_RETURN_IF_ERROR(fill_in(calls, known.element, tensors));
          return calls.in_group([&]() -> Status {
            for (const TensorSpan& span : tensors) {
              LIGHTCC_RETURN_IF_ERROR(calls.check(
                  calls.nccl().all_reduce(
                      span.in, span.out, span.count, known.type, op, calls.comm(), calls.stream()),
                  "ncclAllReduce"));
            }
            return {};
          });
        });
  }
  std::unique_ptr<Work> reduce_scatter(const std::byte* in,
                                       std::byte* out,
                                       std::vector<std::size_t> counts,
                                       const Reduction& reduction) override {
    const Result<NcclReduction> known = nccl_reduction_of(reduction);
    if (!known.ok()) {
      return std::make_unique<FailedWork>(known.status());
    }
    const std::size_t total = sum_of(counts);
    if (!are_equal(counts) || total == 0) {
      std::vector<Piece> pieces =
          cut({{.in = in, .out = nullptr, .count = total}}, counts, element_size(reduction.dtype));
      for (Piece& piece : pieces) {
        piece.out = piece.member == rank_ ? out : nullptr;
      }
      return reduce_pieces(std::move(pieces), *known);
    }
    return start(
        "ncclReduceScatter",
        [in, out, total, count = counts.front(), known = *known](const NcclCalls& calls) -> Status {
          LIGHTCC_ASSIGN_OR_RETURN(const NcclOp op, known.op_for(calls));
          std::vector<TensorSpan> all{{.in = in, .out = out, .count = total}};
          LIGHTCC_RETURN_IF_ERROR(fill_in(calls, known.element, all));
          return calls.check(calls.nccl().reduce_scatter(all.front().in,
                                                         all.front().out,
                                                         count,
                                                         known.type,
                                                         op,
                                                         calls.comm(),
                                                         calls.stream()),
                             "ncclReduceScatter");
        });
  }
  std::unique_ptr<Work> reduce_scatter_bucket(std::vector<TensorSpan> tensors,
                                              std::vector<std::size_t> counts,
                                              const Reduction& reduction) override {
    const Result<NcclReduction> known = nccl_reduction_of(reduction);
    if (!known.ok()) {
      return std::make_unique<FailedWork>(known.status());
    }
    return reduce_pieces(cut(tensors, counts, known->element), *known);
  }
  std::unique_ptr<Work> allgather_bucket(std::vector<TensorSpan> tensors,
                                         std::vector<std::size_t> counts,
                                         DataType dtype) override {
    const std::size_t element = element_size(dtype);
    std::vector<Piece> pieces = cut(tensors, counts, element);
    for (Piece& piece : pieces) {
      // NCCL reads the root's alone.
      piece.in = piece.member == rank_ ? piece.in : piece.out;
    }
    return spread_pieces(std::move(pieces), element);
  }
  std::unique_ptr<Work> allgather(const std::byte* in,
                                  std::byte* out,
                                  std::vector<std::size_t> bytes) override {
    const std::size_t total = sum_of(bytes);
    if (!are_equal(bytes) || total == 0) {
      std::vector<Piece> pieces = cut({{.in = nullptr, .out = out, .count = total}}, bytes, 1);
      for (Piece& piece : pieces) {
        // NCCL reads the root's alone.
        piece.in = piece.member == rank_ ? in : piece.out;
      }
      return spread_pieces(std::move(pieces), 1);
    }
    return start(
        "ncclAllGather", [in, out, total, count = bytes.front()](const NcclCalls& calls) -> Status {
          std::vector<TensorSpan> all{{.in = in, .out = out, .count = total}};
          LIGHTCC_RETURN_IF_ERROR(fill_in(calls, 1, all));
          return calls.check(
              calls.nccl().all_gather(
                  all.front().in, all.front().out, count, kNcclUint8, calls.comm(), calls.stream()),
              "ncclAllGather");
        });
  }
  std::unique_ptr<Work> broadcast(std::byte* data, std::size_t bytes, int root) override {
    std::vector<Piece> pieces;
    if (bytes > 0) {
      pieces.push_back({.in = data, .out = data, .count = bytes, .member = root});
    }
    return spread_pieces(std::move(pieces), 1);
  }
  std::unique_ptr<Work> alltoall(const std::byte* in,
                                 std::vector<std::size_t> send_bytes,
                                 std::byte* out,
                                 std::vector<std::size_t> recv_bytes) override {
    return start(
        "ncclSend and ncclRecv",
        [in, out, send = std::move(send_bytes), receive = std::move(recv_bytes)](
            const NcclCalls& calls) {
          return calls.in_group([&]() -> Status {
            const std::byte* from = in;
            std::byte* to = out;
            for (std::size_t member = 0; member < send.size(); ++member) {
              const int peer = static_cast<int>(member);
              if (send[member] > 0) {
                LIGHTCC_RETURN_IF_ERROR(calls.check(
                    calls.nccl().send(
                        from, send[member], kNcclUint8, peer, calls.comm(), calls.stream()),
                    "ncclSend"));
                from += send[member];
              }
              if (receive[member] > 0) {
                LIGHTCC_RETURN_IF_ERROR(calls.check(
                    calls.nccl().recv(
                        to, receive[member], kNcclUint8, peer, calls.comm(), calls.stream()),
                    "ncclRecv"));
                to += receive[member];
              }
            }
            return {};
          });
        });
  }
  std::unique_ptr<Work> send(const std::byte* in, std::size_t bytes, int peer) override {
    return start("ncclSend", [in, bytes, peer](const NcclCalls& calls) -> Status {
      if (bytes == 0) {
        return {};
      }
      return calls.check(
          calls.nccl().send(in, bytes, kNcclUint8, peer, calls.comm(), calls.stream()), "ncclSend");
    });
  }
  std::unique_ptr<Work> recv(std::byte* out, std::size_t bytes, int peer) override {
    return start("ncclRecv", [out, bytes, peer](const NcclCalls& calls) -> Status {
      if (bytes == 0) {
        return {};
      }
      return calls.check(
          calls.nccl().recv(out, bytes, kNcclUint8, peer, calls.comm(), calls.stream()),
          "ncclRecv");
    });
  }
  std::unique_ptr<Work> barrier() override {
    return allreduce({{.in = nullptr, .out = nullptr, .count = 1}}, Reduction());
  }

 private:
  std::unique_ptr<Work> start(const char* what, NcclOperation run) {
    return comms_.start(comm_, what, std::move(run));
  }
  /// Combines each piece at the member that it belongs to.
  std::unique_ptr<Work> reduce_pieces(std::vector<Piece> pieces, const NcclReduction& reduction) {
    for (Piece& piece : pieces) {
      piece.out = piece.member == rank_ ? piece.out : unused(piece);
    }
    return start("ncclReduce",
                 [pieces = std::move(pieces), reduction](const NcclCalls& calls) mutable {
                   LIGHTCC_ASSIGN_OR_RETURN(const NcclOp op, reduction.op_for(calls));
                   LIGHTCC_RETURN_IF_ERROR(fill_in(calls, reduction.element, pieces));
                   return calls.in_group([&]() -> Status {
                     for (const Piece& piece : pieces) {
                       LIGHTCC_RETURN_IF_ERROR(calls.check(calls.nccl().reduce(piece.in,
                                                                               piece.out,
                                                                               piece.count,
                                                                               reduction.type,
                                                                               op,
                                                                               piece.member,
                                                                               calls.comm(),
                                                                               calls.stream()),
                                                           "ncclReduce"));
                     }
                     return {};
                   });
                 });
  }
  /// Brings each piece, of `element` bytes times its count, from its member to all.
  std::unique_ptr<Work> spread_pieces(std::vector<Piece> pieces, std::size_t element) {
    return start(
        "ncclBroadcast", [pieces = std::move(pieces), element](const NcclCalls& calls) mutable {
          LIGHTCC_RETURN_IF_ERROR(fill_in(calls, element, pieces));
          return calls.in_group([&]() -> Status {
            for (const Piece& piece : pieces) {
              LIGHTCC_RETURN_IF_ERROR(calls.check(calls.nccl().broadcast(piece.in,
                                                                         piece.out,
                                                                         piece.count * element,
                                                                         kNcclUint8,
                                                                         piece.member,
                                                                         calls.comm(),
                                                                         calls.stream()),
                                                  "ncclBroadcast"));
            }
            return {};
          });
        });
  }

  NcclComms& comms_;
  std::shared_ptr<NcclComm> comm_;
  int rank_;
  int size_;
};

}  // namespace

bool is_for_nccl(const Signature& signature) {
  switch (signature.op) {
    case OpType::kAllgather:
    case OpType::kBroadcast:
    case OpType::kAlltoall:
      return true;
    case OpType::kAllreduce:
    case OpType::kReducescatter:
      return has_reduction(signature.dtype,
                           signature.reduce_op,
                           signature.reduce_op == ReduceOp::kAverage ||
                               has_factors(signature.prescale, signature.postscale));
    default:
      return false;
  }
}

std::unique_ptr<Group> make_nccl_group(NcclComms& comms,
                                       std::shared_ptr<NcclComm> comm,
                                       int rank,
                                       int size) {
  return make_checked_group(std::make_unique<NcclGroup>(comms, std::move(comm), rank, size));
}

}  // namespace lightcc::cuda
