#include "lightcc/engine/submission.hpp"

#include <algorithm>
#include <optional>
#include <string>

#include "lightcc/control/agreement.hpp"

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

const char* shown_name(OpType op) {
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

Status check_reduction(const Signature& s) {
  if (s.op == OpType::kReducescatter && s.reduce_op != ReduceOp::kSum &&
      s.reduce_op != ReduceOp::kAverage) {
    return make_error(ErrorCode::kMismatch,
                      "Reducescatter currently only supports AVERAGE and SUM.");
  }
  if (!is_reducible(s.dtype, s.reduce_op)) {
    return invalid("%s with %s does not support %s tensors.",
                   shown_name(s.op),
                   reduce_op_name(s.reduce_op),
                   data_type_name(s.dtype));
  }
  return {};
}

Status check_splits(Request& request, std::size_t members) {
  const Signature& s = request.signature;
  std::vector<std::int64_t>& splits = request.splits;
  if (s.shape.empty()) {
    return invalid("alltoall does not support scalar inputs");
  }
  const std::int64_t rows = s.shape[0];
  const auto count = static_cast<std::int64_t>(members);
  if (splits.empty()) {
    if (rows % count != 0) {
      return invalid(
          "splits not provided, but first dimension of tensor is not an even multiple of the "
          "number "
          "of workers.");
    }
    splits.assign(members, rows / count);
    return {};
  }
  if (splits.size() != members) {
    return invalid("Number of entries in splits does not equal number of workers.");
  }
  std::int64_t sum = 0;
  for (const std::int64_t split : splits) {
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

Status check_new_set(Request& request, const SubmissionContext& context) {
  std::vector<std::int32_t>& ranks = request.ranks;
  std::ranges::sort(ranks);
  const bool repeated = std::ranges::adjacent_find(ranks) != ranks.end();
  if (ranks.empty() || repeated || ranks.front() < 0 || ranks.back() >= context.world_size) {
    return invalid("A process set needs at least one rank, each of 0 to %d at most once.",
                   context.world_size - 1);
  }
  if (context.sets.contains_ranks(ranks)) {
    const std::vector<std::int64_t> wide(ranks.begin(), ranks.end());
    return invalid("Attempted to add a duplicate process set: %s", shape_text(wide).c_str());
  }
  return {};
}

Status check_removal(const Signature& s, const SubmissionContext& context) {
  if (s.root_or_peer <= 0 ||
      context.sets.find(static_cast<std::uint32_t>(s.root_or_peer)) == nullptr) {
    return invalid("There is no process set %d that could be removed.", s.root_or_peer);
  }
  return {};
}

// `ranks` ascend.
bool is_among(const std::vector<std::int32_t>& ranks, std::int32_t rank) {
  return std::ranges::binary_search(ranks, rank);
}

// `members`: of the operation's process set.
Status check_by_operation(Request& request,
                          const std::vector<std::int32_t>& members,
                          const SubmissionContext& context) {
  const Signature& s = request.signature;
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
      return check_splits(request, members.size());
    case OpType::kSend:
    case OpType::kRecv:
      return !is_among(members, s.root_or_peer) || s.root_or_peer == context.rank
                 ? invalid("%s names rank %d, which is not another member of the process set",
                           shown_name(s.op),
                           s.root_or_peer)
                 : Status();
    case OpType::kBarrier:
    case OpType::kJoin:
      return {};
    case OpType::kAddProcessSet:
      return check_new_set(request, context);
    case OpType::kRemoveProcessSet:
      return check_removal(s, context);
  }
  return {};
}

Status check_from_any(Operation& operation, std::size_t members) {
  if (operation.request.signature.op != OpType::kRecv || operation.name.has_value()) {
    return invalid("Only a recv without a name takes a message from any rank.");
  }
  operation.request.signature.root_or_peer = kAnySource;
  return members < 2 ? invalid("Recv from any rank: the process set has no other member.")
                     : Status();
}

// Whether a plane of this rank serves the tensor's memory.
Status check_memory(const Operation& operation,
                    const char* what,
                    const TensorRef& tensor,
                    const SubmissionContext& context) {
  const MemoryKind kind = tensor.memory.kind;
  if (kind == MemoryKind::kHost || (kind == MemoryKind::kCuda && context.serves_cuda)) {
    return {};
  }
  const std::string name = operation.name.has_value() ? " '" + *operation.name + "'" : "";
  return invalid(
      "%s%s on rank %d: the %s tensor lies in %s memory, which nothing here serves; "
      "served is %s memory.",
      shown_name(operation.request.signature.op),
      name.c_str(),
      context.rank,
      what,
      memory_text(tensor.memory).c_str(),
      context.serves_cuda ? "host and cuda" : "host");
}

bool has_output_shape_of_input(OpType op) {
  return op == OpType::kAllreduce || op == OpType::kBroadcast || op == OpType::kRecv;
}

Status check_output(const Operation& operation, const SubmissionContext& context) {
  const OpType op = operation.request.signature.op;
  const TensorRef& input = operation.input;
  const TensorRef& output = *operation.output;
  if (op == OpType::kSend || op > OpType::kRecv) {
    return invalid("%s has no output.", shown_name(op));
  }
  LIGHTCC_RETURN_IF_ERROR(check_memory(operation, "output", output, context));
  if (output.memory != input.memory) {
    return invalid("%s: the output tensor lies in %s memory, but the input in %s memory.",
                   shown_name(op),
                   memory_text(output.memory).c_str(),
                   memory_text(input.memory).c_str());
  }
  if (output.dtype != input.dtype) {
    return invalid("%s: the output tensor is of %s, but the input is of %s.",
                   shown_name(op),
                   data_type_name(output.dtype),
                   data_type_name(input.dtype));
  }
  const std::int64_t count = element_count(output.shape);
  if (count < 0 || (has_output_shape_of_input(op) && count != element_count(input.shape))) {
    return invalid("%s: the output tensor has shape %s, but the input has shape %s.",
                   shown_name(op),
                   shape_text(output.shape).c_str(),
                   shape_text(input.shape).c_str());
  }
  return {};
}

/// What the variables ask for.
std::optional<CompressionSpec> compression_of(const Knobs& knobs) {
  if (!knobs.quantize.empty()) {
    return CompressionSpec{.compressor =
                               knobs.quantize == "int8" ? Compressor::kInt8 : Compressor::kInt4};
  }
  if (knobs.topk) {
    return CompressionSpec{.ratio = knobs.topk_ratio, .fp16 = knobs.topk_fp16};
  }
  return std::nullopt;
}

/// All-gathers and reduce-scatters, of rows that all ranks have alike.
Status check_row_compression(const Operation& operation, std::size_t members) {
  const Signature& s = operation.request.signature;
  const CompressionSpec& spec = *s.compression;
  const bool scatters = s.op == OpType::kReducescatter;
  if (!spec.is_quantized()) {
    return invalid("%s cannot be %s compressed: only int8 and int4 can.",
                   shown_name(s.op),
                   compressor_name(spec.compressor));
  }
  if (scatters && spec.compressor == Compressor::kInt4 && !operation.name.has_value()) {
    return invalid(
        "int4 compression of a reducescatter needs a name: what rounding takes away, the residual, "
        "is added to the next one of that name.");
  }
  const auto rows = static_cast<std::uint64_t>(s.shape[0]);
  if (scatters && rows % members != 0) {
    return invalid(
        "a compressed reducescatter of %llu rows: expected a multiple of %zu, the number of ranks",
        static_cast<unsigned long long>(rows),
        members);
  }
  const auto all = static_cast<std::uint64_t>(element_count(s.shape));
  const std::uint64_t row = scatters ? all / members : all;
  std::uint64_t sum = 0;
  for (const RowSegment& segment : spec.segments) {
    sum += std::min(segment.elements, row + 1);  // Saturates, near enough.
  }
  return spec.segments.empty() || sum == row
             ? Status()
             : invalid("the segments of a compressed %s have %llu elements: expected %llu",
                       shown_name(s.op),
                       static_cast<unsigned long long>(sum),
                       static_cast<unsigned long long>(row));
}

}  // namespace

Result<const std::vector<std::int32_t>*> find_members(const Operation& operation,
                                                      const SubmissionContext& context) {
  const Signature& s = operation.request.signature;
  const std::vector<std::int32_t>* const members = context.sets.find(s.process_set);
  if (members == nullptr) {
    return invalid("%s: Process set provided does not exist, or has not been registered.",
                   shown_name(s.op));
  }
  if (!is_among(*members, context.rank)) {
    return invalid(
        "%s: Rank %d is not a member of the provided process set.", shown_name(s.op), context.rank);
  }
  return members;
}

Status prepare_operation(Operation& operation,
                         const std::vector<std::int32_t>& members,
                         const SubmissionContext& context) {
  Signature& s = operation.request.signature;
  const TensorRef& input = operation.input;
  const bool changes_world =
      s.op == OpType::kJoin || s.op == OpType::kAddProcessSet || s.op == OpType::kRemoveProcessSet;
  if (changes_world && s.process_set != 0) {
    return invalid("join and changes of process sets concern all ranks, not process set %u",
                   s.process_set);
  }
  if (element_count(input.shape) < 0 || input.shape.size() > kMaxDimensions) {
    return invalid("a tensor of shape %s is not possible; at most %zu dimensions are allowed",
                   shape_text(input.shape).c_str(),
                   kMaxDimensions);
  }
  LIGHTCC_RETURN_IF_ERROR(check_memory(operation, "input", input, context));
  if (operation.output.has_value()) {
    LIGHTCC_RETURN_IF_ERROR(check_output(operation, context));
  }
  s.dtype = input.dtype;
  s.shape = input.shape;
  s.memory = input.memory.kind;
  if (operation.from_any) {
    return check_from_any(operation, members.size());
  }
  return check_by_operation(operation.request, members, context);
}

Result<std::optional<CompressionSpec>> choose_compression(const Operation& operation,
                                                          std::size_t members,
                                                          const Knobs& knobs) {
  const Signature& s = operation.request.signature;
  if (s.compression && (s.op == OpType::kAllgather || s.op == OpType::kReducescatter)) {
    LIGHTCC_RETURN_IF_ERROR(check_row_compression(operation, members));
    return is_floating_point(s.dtype) ? s.compression : std::nullopt;
  }
  const bool sums = s.reduce_op == ReduceOp::kSum || s.reduce_op == ReduceOp::kAverage;
  std::optional<CompressionSpec> spec = s.compression;
  // A residual belongs to a name, so what has none is never compressed.
  if (spec && !operation.name.has_value()) {
    return invalid(
        "%s compression needs a name: what is not sent, the residual, is added to the next "
        "allreduce of that name.",
        compressor_name(spec->compressor));
  }
  if (spec && (s.op != OpType::kAllreduce || !sums)) {
    return invalid("%s with %s cannot be %s compressed: only an allreduce with AVERAGE or SUM.",
                   shown_name(s.op),
                   reduce_op_name(s.reduce_op),
                   compressor_name(spec->compressor));
  }
  if (spec && !(spec->is_valid() && spec->segments.empty())) {
    return invalid(
        "%s compression with ratio %g and momentum %g: the ratio must be above 0 and at most 1, "
        "the momentum at least 0 and below 1, only top-k has them, and only rows have segments",
        compressor_name(spec->compressor),
        spec->ratio,
        spec->momentum);
  }
  if (!spec && operation.name.has_value()) {
    spec = compression_of(knobs);
  }
  if (!spec || s.op != OpType::kAllreduce || !sums || !is_floating_point(s.dtype) ||
      byte_count(s) == 0 || byte_count(s) < static_cast<std::uint64_t>(knobs.topk_min_bytes)) {
    return std::optional<CompressionSpec>();
  }
  return spec;
}

// One process set is looked up once, however many operations there are.
Status prepare_operations(std::vector<Operation>& operations,
                          const SubmissionContext& context,
                          const Knobs& knobs) {
  const std::vector<std::int32_t>* members = nullptr;
  std::uint32_t process_set = 0;
  for (Operation& operation : operations) {
    Signature& s = operation.request.signature;
    if (members == nullptr || s.process_set != process_set) {
      LIGHTCC_ASSIGN_OR_RETURN(members, find_members(operation, context));
      process_set = s.process_set;
    }
    LIGHTCC_RETURN_IF_ERROR(prepare_operation(operation, *members, context));
    LIGHTCC_ASSIGN_OR_RETURN(s.compression, choose_compression(operation, members->size(), knobs));
  }
  return {};
}

}  // namespace lightcc
