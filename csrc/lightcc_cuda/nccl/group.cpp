#include "lightcc_cuda/nccl/group.hpp"

#include <functional>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/base/types.hpp"
#include "lightcc/collectives/checked_group.hpp"

#include "lightcc_cuda/nccl/packing.hpp"

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

/// For an output that NCCL does not write.
std::byte* unused(const Piece& piece) {
  return const_cast<std::byte*>(piece.in);  // NOLINT(cppcoreguidelines-pro-type-const-cast)
}

std::size_t sum_of(const std::vector<std::size_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
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
        [tensors = std::move(tensors), known = *known](const NcclCalls& calls) mutable -> Status {
          LIGHTCC_ASSIGN_OR_RETURN(const NcclOp op, known.op_for(calls));
          for (Run left(tensors); !left.empty();) {
            const Run run = first_run(left, known.element);
            LIGHTCC_RETURN_IF_ERROR(reduce_run(calls, run, known, op));
            left = left.subspan(run.size());
          }
          return {};
        });
  }
  std::unique_ptr<Work> reduce_scatter(const std::byte* in,
                                       std::byte* out,
                                       std::vector<std::size_t> counts,
                                       const Reduction& reduction) override {
    return reduce_pieces(
        {{.in = in, .out = nullptr, .count = sum_of(counts)}}, counts, reduction, [&](Piece& own) {
          own.out = out;
        });
  }
  std::unique_ptr<Work> reduce_scatter_bucket(std::vector<TensorSpan> tensors,
                                              std::vector<std::size_t> counts,
                                              const Reduction& reduction) override {
    return reduce_pieces(tensors, counts, reduction, [](Piece&) {});
  }
  std::unique_ptr<Work> allgather_bucket(std::vector<TensorSpan> tensors,
                                         std::vector<std::size_t> counts,
                                         DataType dtype) override {
    return gather_pieces(cut(tensors, counts, element_size(dtype)));
  }
  std::unique_ptr<Work> allgather(const std::byte* in,
                                  std::byte* out,
                                  std::vector<std::size_t> bytes) override {
    Pieces pieces = cut({{.in = nullptr, .out = out, .count = sum_of(bytes)}}, bytes, 1);
    for (Piece& piece : pieces.list) {
      piece.in = piece.member == index() ? in : nullptr;
    }
    return gather_pieces(std::move(pieces));
  }
  std::unique_ptr<Work> broadcast(std::byte* data, std::size_t bytes, int root) override {
    std::vector<std::size_t> counts(static_cast<std::size_t>(size_), 0);
    counts[static_cast<std::size_t>(root)] = bytes;
    return gather_pieces(cut({{.in = data, .out = data, .count = bytes}}, counts, 1));
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
  std::size_t index() const { return static_cast<std::size_t>(rank_); }
  std::unique_ptr<Work> start(const char* what, NcclOperation run) {
    return comms_.start(comm_, what, std::move(run));
  }
  static Status reduce_run(const NcclCalls& calls, Run run, const NcclReduction& known, NcclOp op) {
    const auto all_reduce = [&](const std::byte* in, std::byte* out, std::size_t count) {
      return calls.check(
          calls.nccl().all_reduce(in, out, count, known.type, op, calls.comm(), calls.stream()),
          "ncclAllReduce");
    };
    if (run.size() == 1) {
      LIGHTCC_RETURN_IF_ERROR(fill_in(calls, known.element, run));
      return all_reduce(run.front().in, run.front().out, run.front().count);
    }
    Packing inputs;
    Packing outputs;
    std::size_t bytes = 0;
    for (const TensorSpan& span : run) {
      inputs.add(span.in, bytes, span.count * known.element);
      outputs.add(span.out, bytes, span.count * known.element);
      bytes += padded(span.count * known.element);
    }
    LIGHTCC_ASSIGN_OR_RETURN(std::byte* const buffer, inputs.pack(calls, bytes));
    LIGHTCC_RETURN_IF_ERROR(all_reduce(buffer, buffer, bytes / known.element));
    return outputs.unpack(calls, buffer);
  }

  /// Combines each piece at the member that it belongs to. `set_output` is called for each own one.
  std::unique_ptr<Work> reduce_pieces(const std::vector<TensorSpan>& tensors,
                                      const std::vector<std::size_t>& counts,
                                      const Reduction& reduction,
                                      const std::function<void(Piece& own)>& set_output) {
    const Result<NcclReduction> known = nccl_reduction_of(reduction);
    if (!known.ok()) {
      return std::make_unique<FailedWork>(known.status());
    }
    Pieces pieces = cut(tensors, counts, known->element);
    for (Piece& piece : pieces.list) {
      if (piece.member == index()) {
        set_output(piece);
      } else {
        piece.out = unused(piece);
      }
    }
    return start(pieces.is_one_call() ? "ncclReduceScatter" : "ncclReduce",
                 [pieces = std::move(pieces), known = *known, rank = index()](
                     const NcclCalls& calls) mutable -> Status {
                   LIGHTCC_ASSIGN_OR_RETURN(const NcclOp op, known.op_for(calls));
                   return combine(calls, pieces, known, op, rank);
                 });
  }

  static Status combine(const NcclCalls& calls,
                        Pieces& pieces,
                        const NcclReduction& known,
                        NcclOp op,
                        std::size_t rank) {
    const auto reduce_scatter = [&](const std::byte* in, std::byte* out) {
      return calls.check(
          calls.nccl().reduce_scatter(
              in, out, pieces.max_count, known.type, op, calls.comm(), calls.stream()),
          "ncclReduceScatter");
    };
    if (pieces.is_packed) {
      LIGHTCC_ASSIGN_OR_RETURN(std::byte* const buffer,
                               pieces.packing_of(&Piece::in).pack(calls, pieces.bytes()));
      LIGHTCC_RETURN_IF_ERROR(reduce_scatter(buffer, buffer + pieces.slot_bytes() * rank));
      return pieces.packing_of(&Piece::out, rank).unpack(calls, buffer);
    }
    LIGHTCC_RETURN_IF_ERROR(fill_in(calls, known.element, std::span(pieces.list)));
    if (pieces.is_row) {
      return reduce_scatter(pieces.list.front().in, pieces.list[rank].out);
    }
    return calls.in_group([&]() -> Status {
      for (const Piece& piece : pieces.list) {
        LIGHTCC_RETURN_IF_ERROR(calls.check(calls.nccl().reduce(piece.in,
                                                                piece.out,
                                                                piece.count,
                                                                known.type,
                                                                op,
                                                                static_cast<int>(piece.member),
                                                                calls.comm(),
                                                                calls.stream()),
                                            "ncclReduce"));
      }
      return {};
    });
  }

  /// Brings each piece from its member to all.
  std::unique_ptr<Work> gather_pieces(Pieces pieces) {
    return start(
        pieces.is_one_call() ? "ncclAllGather" : "ncclBroadcast",
        [pieces = std::move(pieces), rank = index()](const NcclCalls& calls) mutable -> Status {
          return gather(calls, pieces, rank);
        });
  }

  static Status gather(const NcclCalls& calls, Pieces& pieces, std::size_t rank) {
    const auto all_gather = [&](const std::byte* in, std::byte* out) {
      return calls.check(
          calls.nccl().all_gather(
              in, out, pieces.slot_bytes(), kNcclUint8, calls.comm(), calls.stream()),
          "ncclAllGather");
    };
    if (pieces.is_packed) {
      LIGHTCC_ASSIGN_OR_RETURN(std::byte* const buffer,
                               pieces.packing_of(&Piece::in, rank).pack(calls, pieces.bytes()));
      LIGHTCC_RETURN_IF_ERROR(all_gather(buffer + pieces.slot_bytes() * rank, buffer));
      return pieces.packing_of(&Piece::out).unpack(calls, buffer);
    }
    for (Piece& piece : pieces.list) {
      piece.in = piece.member == rank ? piece.in : piece.out;  // NCCL reads the own ones alone.
    }
    LIGHTCC_RETURN_IF_ERROR(fill_in(calls, pieces.element, std::span(pieces.list)));
    if (pieces.is_row) {
      return all_gather(pieces.list[rank].in, pieces.list.front().out);
    }
    return calls.in_group([&]() -> Status {
      for (const Piece& piece : pieces.list) {
        LIGHTCC_RETURN_IF_ERROR(calls.check(calls.nccl().broadcast(piece.in,
                                                                   piece.out,
                                                                   piece.count * pieces.element,
                                                                   kNcclUint8,
                                                                   static_cast<int>(piece.member),
                                                                   calls.comm(),
                                                                   calls.stream()),
                                            "ncclBroadcast"));
      }
      return {};
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
