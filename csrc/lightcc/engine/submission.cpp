#include "lightcc/engine/submission.hpp"

#include <algorithm>
#include <optional>
#include <string>

#include "lightcc/control/agreement.hpp"
#include "lightcc/engine/core.hpp"

namespace lightcc {
namespace {

Status invalid(const char* text) {
  return {ErrorCode::kInvalidArgument, text};
}

template <typename... Arguments>
Status invalid(const char* format, Arguments... arguments) {
  return make_error(
      ErrorCode::kInvalidArgument, format, arguments...);  // NOLINT: checked by callers
}

const char* spoken_name(OpType op) {
  switch (op) {
    case OpType::kAllreduce:
      return "Allreduce";
    case OpType::kAllgather:
      return "Allgather";
    case OpType::kBroadcast:
      return "Broadcast";
    case OpType::kAlltoall:
      return "Alltoall";
    case OpType::kReducescatter:
      return "Reducescatter";
    case OpType::kSend:
      return "Send";
    case OpType::kRecv:
      return "Recv";
    case OpType::kBarrier:
      return "Barrier";
    default:
      return "Operation";
  }
}

Status check_reduction(const Submission& s) {
  if (s.op == OpType::kReducescatter && s.reduce_op != ReduceOp::kSum &&
      s.reduce_op != ReduceOp::kAverage) {
    return make_error(ErrorCode::kMismatch,
                      "Reducescatter currently only supports AVERAGE and SUM.");
  }
  if (!is_reducible(s.dtype, s.reduce_op)) {
    return invalid("%s with %s does not support %s tensors.",
                   spoken_name(s.op),
                   reduce_op_name(s.reduce_op),
                   data_type_name(s.dtype));
  }
  return {};
}

Status check_splits(Submission& s, std::size_t members) {
  if (s.shape.empty()) {
    return invalid("alltoall does not support scalar inputs");
  }
  const std::int64_t rows = s.shape[0];
  const auto count = static_cast<std::int64_t>(members);
  if (s.splits.empty()) {
    if (rows % count != 0) {
      return invalid(
          "splits not provided, but first dimension of tensor is not an even multiple of the "
          "number "
          "of workers.");
    }
    s.splits.assign(members, rows / count);
    return {};
  }
  if (s.splits.size() != members) {
    return invalid("Number of entries in splits does not equal number of workers.");
  }
  std::int64_t sum = 0;
  for (const std::int64_t split : s.splits) {
    if (split < 0 || split > rows) {
      return split < 0
                 ? invalid("Entries of splits must not be negative.")
                 : invalid("Sum of splits entries is greater than the first dimension of tensor.");
    }
    sum = std::min(sum + split, rows + 1);  // Saturates: no overflow however many there are.
  }
  return sum > rows
             ? invalid("Sum of splits entries is greater than the first dimension of tensor.")
             : Status();
}

Status check_new_set(Submission& s, const ProcessSetTable& sets, int world_size, bool dynamic) {
  if (!dynamic) {
    return invalid(
        "Set HOROVOD_DYNAMIC_PROCESS_SETS=1 to add or remove process sets after init().");
  }
  std::ranges::sort(s.ranks);
  const bool repeated = std::ranges::adjacent_find(s.ranks) != s.ranks.end();
  if (s.ranks.empty() || repeated || s.ranks.front() < 0 || s.ranks.back() >= world_size) {
    return invalid("A process set needs at least one rank, each of 0 to %d at most once.",
                   world_size - 1);
  }
  std::string text;
  for (const std::int32_t rank : s.ranks) {
    text += (text.empty() ? "" : ", ") + std::to_string(rank);
  }
  if (sets.contains_ranks(s.ranks)) {
    return invalid("Attempted to add a duplicate process set: [%s]", text.c_str());
  }
  s.name = "add_process_set.[" + text + "]";
  return {};
}

Status check_removal(Submission& s, const ProcessSetTable& sets, bool dynamic) {
  if (!dynamic) {
    return invalid(
        "Set HOROVOD_DYNAMIC_PROCESS_SETS=1 to add or remove process sets after init().");
  }
  if (s.root_or_peer <= 0 || sets.find(static_cast<std::uint32_t>(s.root_or_peer)) == nullptr) {
    return invalid("There is no process set %d that could be removed.", s.root_or_peer);
  }
  s.name = "remove_process_set." + std::to_string(s.root_or_peer);
  return {};
}

// `ranks` ascend.
bool is_among(const std::vector<std::int32_t>& ranks, std::int32_t rank) {
  return std::ranges::binary_search(ranks, rank);
}

// `members`: of the submission's process set.
Status check_by_operation(Submission& s,
                          const std::vector<std::int32_t>& members,
                          const ProcessSetTable& sets,
                          int rank,
                          int world_size,
                          bool dynamic) {
  switch (s.op) {
    case OpType::kAllreduce:
      return check_reduction(s);
    case OpType::kReducescatter:
      return s.shape.empty() ? invalid("Reducescatter does not support scalar inputs")
                             : check_reduction(s);
    case OpType::kAllgather:
      return s.shape.empty()
                 ? make_error(ErrorCode::kMismatch,
                              "Process-set rank zero tried to ALLGATHER a rank-zero tensor.")
                 : Status();
    case OpType::kBroadcast:
      return !is_among(members, s.root_or_peer)
                 ? invalid("broadcast received invalid root rank %d for provided process set",
                           s.root_or_peer)
                 : Status();
    case OpType::kAlltoall:
      return check_splits(s, members.size());
    case OpType::kSend:
    case OpType::kRecv:
      return !is_among(members, s.root_or_peer) || s.root_or_peer == rank
                 ? invalid("%s names rank %d, which is not another member of the process set",
                           spoken_name(s.op),
                           s.root_or_peer)
                 : Status();
    case OpType::kBarrier:
      s.name = "barrier";
      return {};
    case OpType::kJoin:
      s.name = kJoinName;
      return {};
    case OpType::kAddProcessSet:
      return check_new_set(s, sets, world_size, dynamic);
    case OpType::kRemoveProcessSet:
      return check_removal(s, sets, dynamic);
  }
  return {};
}

}  // namespace

Status prepare_submission(
    Submission& submission, const ProcessSetTable& sets, int rank, int world_size, bool dynamic) {
  const std::vector<std::int32_t>* const members = sets.find(submission.process_set);
  if (members == nullptr) {
    return invalid("%s: Process set provided does not exist, or has not been registered.",
                   spoken_name(submission.op));
  }
  if (!is_among(*members, rank)) {
    return invalid("%s: Rank %d is not a member of the provided process set.",
                   spoken_name(submission.op),
                   rank);
  }
  const bool changes_world = submission.op == OpType::kJoin ||
                             submission.op == OpType::kAddProcessSet ||
                             submission.op == OpType::kRemoveProcessSet;
  if (changes_world && submission.process_set != kGlobalProcessSet) {
    return invalid("join and changes of process sets concern all ranks, not process set %u",
                   submission.process_set);
  }
  if (submission.name.size() > kMaxNameBytes) {
    return invalid("a tensor name has %zu bytes; at most %zu are allowed",
                   submission.name.size(),
                   kMaxNameBytes);
  }
  const std::int64_t count = element_count(submission.shape);
  if (count < 0 || submission.shape.size() > kMaxDimensions) {
    return invalid("a tensor of shape %s is not possible; at most %zu dimensions are allowed",
                   shape_text(submission.shape).c_str(),
                   kMaxDimensions);
  }
  return check_by_operation(submission, *members, sets, rank, world_size, dynamic);
}

Result<std::optional<TopkSpec>> choose_compression(const Submission& submission,
                                                   const Knobs& knobs) {
  const bool sums =
      submission.reduce_op == ReduceOp::kSum || submission.reduce_op == ReduceOp::kAverage;
  std::optional<TopkSpec> topk = submission.topk;
  if (topk && (submission.op != OpType::kAllreduce || !sums)) {
    return invalid("%s with %s cannot be top-k compressed: only an allreduce with AVERAGE or SUM.",
                   spoken_name(submission.op),
                   reduce_op_name(submission.reduce_op));
  }
  if (topk && !topk->is_valid()) {
    return invalid(
        "top-k compression with ratio %g and momentum %g: the ratio must be above 0 and at most 1, "
        "the momentum at least 0 and below 1",
        topk->ratio,
        topk->momentum);
  }
  if (!topk && knobs.topk && submission.may_compress) {
    topk = TopkSpec{.ratio = knobs.topk_ratio, .fp16 = knobs.topk_fp16};
  }
  const auto count = static_cast<std::uint64_t>(element_count(submission.shape));
  if (!topk || submission.op != OpType::kAllreduce || !sums ||
      !is_floating_point(submission.dtype) || count == 0 ||
      count * element_size(submission.dtype) < static_cast<std::uint64_t>(knobs.topk_least_bytes)) {
    return std::optional<TopkSpec>();
  }
  topk->exact = topk->exact || knobs.topk_exact;
  return topk;
}

}  // namespace lightcc
