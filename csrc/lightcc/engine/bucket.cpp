#include "lightcc/engine/bucket.hpp"

#include <algorithm>
#include <exception>
#include <numeric>
#include <string>
#include <utility>

#include "lightcc/engine/compressed_bucket.hpp"
#include "lightcc/engine/staged/staged_bucket.hpp"
#include "lightcc/engine/staged/staged_pieces.hpp"
#include "lightcc/engine/wide_average.hpp"

namespace lightcc {
namespace {

const std::byte* input_of(const BucketTensor& tensor) {
  return tensor.operation == nullptr
             ? nullptr
             : static_cast<const std::byte*>(tensor.operation->operation.input.data);
}

// Bytes of one row: everything behind the first dimension.
std::size_t row_bytes(const Signature& signature) {
  const std::vector<std::int64_t> row(signature.shape.begin() + (signature.shape.empty() ? 0 : 1),
                                      signature.shape.end());
  return static_cast<std::size_t>(element_count(row)) * element_size(signature.dtype);
}

std::size_t tensor_count(const Signature& signature) {
  return static_cast<std::size_t>(element_count(signature.shape));
}

Result<void*> call_allocator(const Operation& operation,
                             const std::vector<std::int64_t>& shape,
                             std::size_t bytes) {
  Result<void*> memory = Status(ErrorCode::kSystem, "it threw an exception");
  try {
    memory = operation.allocator(shape, bytes);
  } catch (const std::exception& error) {
    memory = Status(ErrorCode::kSystem, error.what());
  } catch (...) {  // NOLINT(bugprone-empty-catch): the status above says so.
  }
  if (memory.ok() && (*memory != nullptr || bytes == 0)) {
    return memory;
  }
  return make_error(ErrorCode::kSystem,
                    "the allocator of '%s' gave no memory for an output of %zu bytes: %s",
                    operation.request.signature.name.c_str(),
                    bytes,
                    memory.ok() ? "it returned null" : memory.status().message().c_str());
}

// Memory that the caller gave, or says how to get.
Result<void*> memory_of_caller(const Operation& operation,
                               const std::vector<std::int64_t>& shape,
                               std::size_t bytes) {
  if (!operation.output.has_value()) {
    return call_allocator(operation, shape, bytes);
  }
  if (element_count(operation.output->shape) != element_count(shape)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "the output given for '%s' has shape %s, but the result has shape %s",
                      operation.request.signature.name.c_str(),
                      shape_text(operation.output->shape).c_str(),
                      shape_text(shape).c_str());
  }
  return operation.output->data;
}

// output_for(), in the plane's memory where the caller gave none.
Result<std::byte*> output_on(BucketTensor& tensor, std::vector<std::int64_t> shape, Plane& plane) {
  return output_for(
      tensor, std::move(shape), [&](std::size_t bytes) -> AllocateOutput::result_type {
        const Operation& operation = tensor.operation->operation;
        return plane.allocate(bytes, operation.input.memory.device);
      });
}

Result<std::unique_ptr<Work>> start_allreduce(Plane& plane,
                                              Bucket& bucket,
                                              Algorithm algorithm,
                                              const BucketSite& site) {
  std::vector<TensorSpan> spans;
  spans.reserve(bucket.tensors.size());
  for (BucketTensor& tensor : bucket.tensors) {
    LIGHTCC_ASSIGN_OR_RETURN(std::byte * out, output_on(tensor, tensor.signature().shape, plane));
    spans.push_back({input_of(tensor), out, tensor_count(tensor.signature())});
  }
  const Signature& first = bucket.tensors.front().signature();
  const Reduction reduction = reduction_of(first, site.members.size());
  if (has_wide_sums(first)) {
    return wide_allreduce(site.group(), std::move(spans), reduction);
  }
  switch (algorithm) {
    case Algorithm::kAdasum:
      return plane.start_adasum(site.group(), spans.front(), reduction);
    case Algorithm::kCompressed:
      return start_compressed(bucket, spans, reduction, site);
    default:
      return site.group().allreduce(std::move(spans), reduction);
  }
}

Result<std::unique_ptr<Work>> start_allgather(Plane& plane,
                                              BucketTensor& tensor,
                                              bool is_compressed,
                                              const BucketSite& site) {
  LIGHTCC_ASSIGN_OR_RETURN(std::byte * out, output_on(tensor, gathered_shape(tensor), plane));
  if (is_compressed) {
    return start_compressed_allgather(tensor, input_of(tensor), out, site);
  }
  return site.group().allgather(input_of(tensor), out, gathered_bytes(tensor));
}

Result<std::unique_ptr<Work>> start_broadcast(Plane& plane,
                                              BucketTensor& tensor,
                                              const BucketSite& site) {
  const auto root = static_cast<int>(
      std::ranges::find(site.members, tensor.signature().root_or_peer) - site.members.begin());
  LIGHTCC_ASSIGN_OR_RETURN(std::byte * out, output_on(tensor, tensor.signature().shape, plane));
  const std::size_t bytes =
      tensor_count(tensor.signature()) * element_size(tensor.signature().dtype);
  const std::byte* in = input_of(tensor);
  if (site.group().rank() == root && out != in && bytes > 0) {
    plane.copy(out, in, bytes);
  }
  return site.group().broadcast(out, bytes, root);
}

Result<std::unique_ptr<Work>> start_alltoall(Plane& plane,
                                             BucketTensor& tensor,
                                             const BucketSite& site) {
  Group& group = site.group();
  const auto members = static_cast<std::size_t>(group.size());
  const auto me = static_cast<std::size_t>(group.rank());
  const std::size_t row = row_bytes(tensor.signature());
  std::vector<std::size_t> send(members);
  std::vector<std::size_t> receive(members);
  std::int64_t rows = 0;
  for (std::size_t i = 0; i < members; ++i) {
    send[i] = static_cast<std::size_t>(tensor.per_member()[me * members + i]) * row;
    const std::int64_t from = tensor.per_member()[i * members + me];
    receive[i] = static_cast<std::size_t>(from) * row;
    tensor.outcome.received_splits.push_back(from);
    rows += from;
  }
  std::vector<std::int64_t> shape = tensor.signature().shape;
  shape[0] = rows;
  LIGHTCC_ASSIGN_OR_RETURN(std::byte * out, output_on(tensor, std::move(shape), plane));
  return group.alltoall(input_of(tensor), std::move(send), out, std::move(receive));
}

// The first (rows mod members) members get one row more.
Result<std::unique_ptr<Work>> start_reducescatter(Plane& plane,
                                                  Bucket& bucket,
                                                  bool is_compressed,
                                                  const BucketSite& site) {
  BucketTensor& tensor = bucket.tensors.front();
  Group& group = site.group();
  const auto members = static_cast<std::size_t>(group.size());
  const auto rows = static_cast<std::size_t>(tensor.signature().shape[0]);
  const std::size_t row_count =
      row_bytes(tensor.signature()) / element_size(tensor.signature().dtype);
  std::vector<std::size_t> counts;
  std::int64_t own_rows = 0;
  for (std::size_t i = 0; i < members; ++i) {
    const std::size_t share = rows / members + (i < rows % members ? 1 : 0);
    counts.push_back(share * row_count);
    own_rows =
        i == static_cast<std::size_t>(group.rank()) ? static_cast<std::int64_t>(share) : own_rows;
  }
  std::vector<std::int64_t> shape = tensor.signature().shape;
  shape[0] = own_rows;
  LIGHTCC_ASSIGN_OR_RETURN(std::byte * out, output_on(tensor, std::move(shape), plane));
  const Signature& signature = tensor.signature();
  const Reduction reduction = reduction_of(signature, members);
  if (is_compressed) {
    return start_compressed_scatter(bucket, input_of(tensor), out, reduction, site);
  }
  if (has_wide_sums(signature)) {
    return wide_reduce_scatter(group, input_of(tensor), out, std::move(counts), reduction);
  }
  return group.reduce_scatter(input_of(tensor), out, std::move(counts), reduction);
}

Result<std::unique_ptr<Work>> start_transfer(Plane& plane,
                                             BucketTensor& tensor,
                                             const BucketSite& site) {
  Group& group = site.group();
  const std::size_t bytes =
      tensor_count(tensor.signature()) * element_size(tensor.signature().dtype);
  const auto index_of = [&](std::int64_t rank) {
    return static_cast<int>(std::ranges::find(site.members, rank) - site.members.begin());
  };
  const int source = index_of(tensor.per_member()[0]);
  const int destination = index_of(tensor.per_member()[1]);
  if (group.rank() == source) {
    return group.send(input_of(tensor), bytes, destination);
  }
  LIGHTCC_ASSIGN_OR_RETURN(std::byte * out, output_on(tensor, tensor.signature().shape, plane));
  return group.recv(out, bytes, source);
}

}  // namespace

Reduction reduction_of(const Signature& signature, std::size_t members) {
  Reduction reduction{
      signature.dtype, signature.reduce_op, signature.prescale, signature.postscale};
  if (signature.reduce_op == ReduceOp::kAverage) {
    reduction.op = ReduceOp::kSum;
    reduction.postscale /= static_cast<double>(members);
  }
  return reduction;
}

std::uint64_t byte_count(const Bucket& bucket) {
  std::uint64_t bytes = 0;
  for (const BucketTensor& tensor : bucket.tensors) {
    bytes += byte_count(tensor.signature());
  }
  return bytes;
}

std::vector<std::int64_t> gathered_shape(const BucketTensor& tensor) {
  std::vector<std::int64_t> shape = tensor.signature().shape;
  shape[0] =
      std::accumulate(tensor.per_member().begin(), tensor.per_member().end(), std::int64_t{0});
  return shape;
}

std::vector<std::size_t> gathered_bytes(const BucketTensor& tensor) {
  const std::size_t row = row_bytes(tensor.signature());
  std::vector<std::size_t> bytes;
  bytes.reserve(tensor.per_member().size());
  for (const std::int64_t rows : tensor.per_member()) {
    bytes.push_back(static_cast<std::size_t>(rows) * row);
  }
  return bytes;
}

Result<std::byte*> output_for(BucketTensor& tensor,
                              std::vector<std::int64_t> shape,
                              const AllocateOutput& allocate) {
  if (tensor.operation == nullptr) {
    return static_cast<std::byte*>(nullptr);
  }
  return output_for(
      tensor.operation->operation, std::move(shape), tensor.outcome, tensor.status, allocate);
}

Result<std::byte*> output_for(const Operation& operation,
                              std::vector<std::int64_t> shape,
                              Outcome& outcome,
                              Status& status,
                              const AllocateOutput& allocate) {
  const Signature& signature = operation.request.signature;
  outcome.shape = std::move(shape);
  const std::int64_t count = element_count(outcome.shape);
  std::size_t bytes = 0;
  if (count < 0 || __builtin_mul_overflow(
                       static_cast<std::size_t>(count), element_size(signature.dtype), &bytes)) {
    return make_error(ErrorCode::kSystem,
                      "the output of '%s', of shape %s, is too large for this machine",
                      signature.name.c_str(),
                      shape_text(outcome.shape).c_str());
  }
  if (operation.output.has_value() || operation.allocator) {
    const Result<void*> memory = memory_of_caller(operation, outcome.shape, bytes);
    if (memory.ok()) {
      return static_cast<std::byte*>(*memory);
    }
    status = memory.status();
  }
  auto made = allocate(bytes);
  if (!made.ok() || (*made)->data() == nullptr) {
    const std::string why = made.ok() ? "" : ": " + made.status().message();
    return make_error(ErrorCode::kSystem,
                      "cannot allocate %zu bytes for the output of '%s'%s",
                      bytes,
                      signature.name.c_str(),
                      why.c_str());
  }
  outcome.output = std::move(*made);
  return outcome.output->data();
}

Result<std::unique_ptr<Work>> Plane::start(Bucket& bucket,
                                           const Route& route,
                                           const BucketSite& site) {
  const bool is_compressed = route.algorithm == Algorithm::kCompressed;
  const OpType op = bucket.tensors.front().signature().op;
  if (is_compressed && op == OpType::kAllreduce) {
    LIGHTCC_ASSIGN_OR_RETURN(auto work, start_compressed_on_devices(bucket, site));
    if (work != nullptr) {
      return work;
    }
  }
  if (route.carrier == Carrier::kStaged) {
    return route.piece_bytes > 0 ? start_in_pieces(bucket, site, route.piece_bytes)
                                 : start_whole(*this, bucket, route, site);
  }
  BucketTensor& first = bucket.tensors.front();
  switch (op) {
    case OpType::kAllreduce:
      return start_allreduce(*this, bucket, route.algorithm, site);
    case OpType::kAllgather:
      return start_allgather(*this, first, is_compressed, site);
    case OpType::kBroadcast:
      return start_broadcast(*this, first, site);
    case OpType::kAlltoall:
      return start_alltoall(*this, first, site);
    case OpType::kReducescatter:
      return start_reducescatter(*this, bucket, is_compressed, site);
    case OpType::kSend:
    case OpType::kRecv:
      return start_transfer(*this, first, site);
    default:
      return make_error(ErrorCode::kInternal,
                        "%s is not something a group runs",
                        op_type_name(first.signature().op));
  }
}

}  // namespace lightcc
