#include "lightcc/engine/compressed_bucket.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include "lightcc/compression/exchange/compressed_allreduce.hpp"
#include "lightcc/compression/exchange/compressed_gather.hpp"
#include "lightcc/compression/exchange/compressed_item.hpp"
#include "lightcc/compression/exchange/compressed_scatter.hpp"
#include "lightcc/compression/residual/shard.hpp"
#include "lightcc/compression/topk/topk_plan.hpp"

namespace lightcc {
namespace {

std::size_t elements_of(const Signature& signature) {
  return static_cast<std::size_t>(element_count(signature.shape));
}

ResidualStore::Key key_of(const Bucket& bucket, const Signature& signature) {
  return {bucket.process_set, signature.name};
}

/// The residuals of a bucket's tensors.
using Entries = std::vector<std::shared_ptr<TensorResidual>>;

/// What multiplies the residual when it is sent: the division of an average, and factors of the
/// caller's.
double factor_of_kept(const Signature& signature, const BucketSite& site) {
  return late_factor(reduction_of(signature, site.members.size()), *site.compression_position);
}

constexpr const char* kOtherSteps =
    "ranks had made different numbers of steps, and all go on with the most; load states of "
    "compression on all ranks, or on none";

/// At the step of which all ranks have agreed.
void go_on(TensorResidual& entry, const BucketTensor& tensor, ResidualStore& residuals) {
  if (entry.steps == tensor.steps) {
    return;
  }
  residuals.log_once("compression of '" + tensor.signature().name + "' goes on after " +
                         std::to_string(tensor.steps) + " steps, and not after " +
                         std::to_string(entry.steps) + ": ",
                     kOtherSteps,
                     LogLevel::kWarning);
  entry.steps = tensor.steps;
}

Result<std::shared_ptr<TensorResidual>> entry_on(CompressionKernels& kernels,
                                                 ResidualOf of,
                                                 const Bucket& bucket,
                                                 const BucketTensor& tensor,
                                                 const BucketSite& site) {
  const Signature& signature = tensor.signature();
  const ResidualStore::Key key = key_of(bucket, signature);
  const double factor = factor_of_kept(signature, site);
  LIGHTCC_RETURN_IF_ERROR(site.residuals.set_factor(key, factor));
  auto entry = site.residuals.entry(
      key, of, *site.compression_position, signature.dtype, elements_of(signature), kernels);
  if (entry.ok()) {
    (*entry)->send_factor = factor;
    if (of == ResidualOf::kShard) {
      go_on(**entry, tensor, site.residuals);
    }
  }
  return entry;
}

/// How a tensor is exchanged in its next step.
TopkExchange next_exchange(const BucketTensor& tensor, const BucketSite& site) {
  const Signature& signature = tensor.signature();
  const CompressionSpec& spec = *signature.compression;
  const GridPosition& position = *site.compression_position;
  return plan_topk(elements_of(signature),
                   position.members,
                   position.blocks,
                   topk_warmup_ratio(tensor.steps, spec.warmup_steps, spec.ratio),
                   {.dtype = signature.dtype, .fp16 = spec.fp16})
      .exchange;
}

constexpr const char* kDenseToo = "so much of it is sent that dense elements travel as well";

/// Why a tensor cannot be top-k compressed on its device; empty: it can.
std::string why_unsupported(const BucketTensor& tensor, const BucketSite& site) {
  if (tensor.operation == nullptr) {
    return "this rank has joined";
  }
  const Signature& signature = tensor.signature();
  const GridPosition& position = *site.compression_position;
  if (signature.compression->two_bits) {
    return "values travel in 2 bits";
  }
  if (next_exchange(tensor, site) != TopkExchange::kLists) {
    return kDenseToo;
  }
  const CompressionKernels* const kernels =
      site.devices->topk_kernels(tensor.operation->operation.input.memory.device);
  if (kernels == nullptr) {
    return "there are no kernels for it";
  }
  const ShardRange shard =
      shard_range(elements_of(signature), position.members, position.member, signature.dtype);
  return kernels->why_unsupported(signature.dtype, shard.size_elems(), position.blocks);
}

/// The same for a bucket.
std::string why_unsupported(const Bucket& bucket, const BucketSite& site) {
  if (site.lane.device_shards == nullptr && site.compression_position->members > 1) {
    return "ranks of a host add up in host memory; HOROVOD_GPU_OPERATIONS=NCCL beside "
           "LIGHT_2D_ALLREDUCE=1 would on GPUs";
  }
  for (const BucketTensor& tensor : bucket.tensors) {
    std::string objection = why_unsupported(tensor, site);
    if (!objection.empty()) {
      return objection;
    }
  }
  return {};
}

void log_why_on_host(const Bucket& bucket, const BucketSite& site, const std::string& why) {
  site.residuals.log_once("top-k of tensors on GPUs, such as '" +
                              bucket.tensors.front().signature().name + "', runs in host memory: ",
                          why);
}

/// Those on the devices of the tensors; none: the log has said once why.
std::optional<Entries> entries_on_devices(const Bucket& bucket, const BucketSite& site) {
  if (site.devices == nullptr || bucket.tensors.front().signature().compression->is_quantized()) {
    return std::nullopt;
  }
  if (const std::string objection = why_unsupported(bucket, site); !objection.empty()) {
    log_why_on_host(bucket, site, objection);
    return std::nullopt;
  }
  Entries entries;
  entries.reserve(bucket.tensors.size());
  for (const BucketTensor& tensor : bucket.tensors) {
    const std::int32_t device = tensor.operation->operation.input.memory.device;
    auto entry =
        entry_on(*site.devices->topk_kernels(device), ResidualOf::kShard, bucket, tensor, site);
    if (!entry.ok()) {  // The next bucket meets an objection.
      log_why_on_host(bucket, site, entry.status().message());
      return std::nullopt;
    }
    entries.push_back(std::move(*entry));
  }
  return entries;
}

Result<std::unique_ptr<Work>> start_with(const Bucket& bucket,
                                         const std::vector<TensorSpan>& spans,
                                         const Reduction& reduction,
                                         const BucketSite& site,
                                         Entries entries,
                                         bool on_device) {
  std::vector<CompressedTensor> tensors;
  tensors.reserve(spans.size());
  for (std::size_t i = 0; i < spans.size(); ++i) {
    tensors.push_back({.span = spans[i], .entry = std::move(entries[i])});
  }
  const CompressedJob job{.reduction = reduction,
                          .spec = *bucket.tensors.front().signature().compression,
                          .counters = &site.residuals.counters(),
                          .gathers_shards = site.lane.shards != nullptr,
                          .shards_apart = site.lane.shards != nullptr && !on_device,
                          .on_device = on_device};
  Group* const shards = on_device ? site.lane.device_shards.get() : site.lane.shards.get();
  return make_compressed_allreduce(
      {.grid = site.lane.grid, .flat = &site.group(), .shards = shards}, std::move(tensors), job);
}

}  // namespace

std::uint64_t steps_made(const Signature& signature,
                         const GridPosition& position,
                         const ResidualStore& residuals) {
  const ResidualStore::Key key{signature.process_set, signature.name};
  return residuals.steps_of(key, position, signature.dtype, elements_of(signature));
}

Result<std::unique_ptr<Work>> start_compressed_on_devices(Bucket& bucket, const BucketSite& site) {
  std::optional<Entries> entries = entries_on_devices(bucket, site);
  if (!entries.has_value()) {
    return std::unique_ptr<Work>();
  }
  std::vector<TensorSpan> spans;
  for (std::size_t i = 0; i < bucket.tensors.size(); ++i) {
    BucketTensor& tensor = bucket.tensors[i];
    const TensorRef& input = tensor.operation->operation.input;
    LIGHTCC_ASSIGN_OR_RETURN(std::byte* const out,
                             output_for(tensor, tensor.signature().shape, [&](std::size_t bytes) {
                               return site.devices->allocate(bytes, input.memory.device);
                             }));
    spans.push_back({.in = static_cast<const std::byte*>(input.data),
                     .out = out,
                     .count = (*entries)[i]->elements});
  }
  const Reduction reduction = reduction_of(bucket.tensors.front().signature(), site.members.size());
  return start_with(bucket, spans, reduction, site, std::move(*entries), /*on_device=*/true);
}

Result<std::unique_ptr<Work>> start_compressed(const Bucket& bucket,
                                               const std::vector<TensorSpan>& spans,
                                               const Reduction& reduction,
                                               const BucketSite& site) {
  Entries entries;
  for (const BucketTensor& tensor : bucket.tensors) {
    LIGHTCC_ASSIGN_OR_RETURN(entries.emplace_back(),
                             entry_on(host_kernels(), ResidualOf::kShard, bucket, tensor, site));
  }
  return start_with(bucket, spans, reduction, site, std::move(entries), /*on_device=*/false);
}

Result<std::unique_ptr<Work>> start_compressed_allgather(const BucketTensor& tensor,
                                                         const std::byte* in,
                                                         std::byte* out,
                                                         const BucketSite& site) {
  const Signature& signature = tensor.signature();
  std::vector<std::size_t> elements = gathered_bytes(tensor);
  for (std::size_t& count : elements) {
    count /= element_size(signature.dtype);
  }
  return make_compressed_allgather(site.group(),
                                   in,
                                   out,
                                   elements,
                                   {.dtype = signature.dtype,
                                    .spec = *signature.compression,
                                    .blocks = site.compression_position->blocks,
                                    .counters = &site.residuals.counters()});
}

Result<std::unique_ptr<Work>> start_compressed_scatter(const Bucket& bucket,
                                                       const std::byte* in,
                                                       std::byte* out,
                                                       const Reduction& reduction,
                                                       const BucketSite& site) {
  const BucketTensor& tensor = bucket.tensors.front();
  const Signature& signature = tensor.signature();
  std::shared_ptr<TensorResidual> entry;
  if (!signature.is_automatic) {
    LIGHTCC_ASSIGN_OR_RETURN(
        entry, entry_on(host_kernels(), ResidualOf::kScatteredRows, bucket, tensor, site));
  }
  return make_compressed_scatter(
      {.grid = site.lane.grid, .flat = &site.group()},
      {.in = in, .out = out, .count = elements_of(signature) / site.members.size()},
      std::move(entry),
      {.reduction = reduction,
       .spec = *signature.compression,
       .position = *site.compression_position,
       .counters = &site.residuals.counters()});
}

}  // namespace lightcc
