#include "lightcc_cuda/nccl/kernel_reduction.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "lightcc/base/types.hpp"
#include "lightcc/collectives/all_works.hpp"

#include "lightcc_cuda/driver/reduce_launch.hpp"

namespace lightcc::cuda {
namespace {

/// What reduce.cu reads at once, where all addresses are multiples of it.
constexpr std::size_t kAlignment = 16;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

/// Hands out the elements of tensors, one after another.
class SpanReader {
 public:
  SpanReader(std::vector<TensorSpan> spans, std::size_t element_bytes)
      : spans_(std::move(spans)), element_bytes_(element_bytes) {}

  /// The next `count` elements, or those that are left. None of the spans is empty.
  std::vector<TensorSpan> take(std::size_t count) {
    std::vector<TensorSpan> taken;
    while (count > 0 && next_ < spans_.size()) {
      const TensorSpan& span = spans_[next_];
      const std::size_t here = std::min(count, span.count - done_);
      if (here > 0) {
        const std::size_t offset = done_ * element_bytes_;
        taken.push_back({.in = span.in == nullptr ? nullptr : span.in + offset,
                         .out = span.out == nullptr ? nullptr : span.out + offset,
                         .count = here});
      }
      count -= here;
      done_ += here;
      if (done_ == span.count) {
        ++next_;
        done_ = 0;
      }
    }
    return taken;
  }

 private:
  std::vector<TensorSpan> spans_;
  std::size_t element_bytes_;
  std::size_t next_ = 0;
  std::size_t done_ = 0;  // Elements of the next one.
};

/// What the kernel is launched for.
struct Combination {
  std::vector<const std::byte*> sources;  // By member.
  std::byte* out = nullptr;
  std::size_t count = 0;
};

Status combine(const CopySite& site, const Reduction& reduction, const Combination& what) {
  ReduceArguments arguments{};
  for (std::size_t member = 0; member < what.sources.size(); ++member) {
    arguments.sources[member] =
        reinterpret_cast<const u8*>(gpu_address(what.sources[member]));  // NOLINT: of the GPU
  }
  arguments.prescaled = ~u64{0};
  arguments.out = reinterpret_cast<u8*>(gpu_address(what.out));  // NOLINT: of the GPU
  arguments.count = what.count;
  arguments.prescale = reduction.prescale;
  arguments.postscale = reduction.postscale;
  arguments.num_sources = static_cast<u32>(what.sources.size());
  arguments.op = static_cast<u32>(reduction.op);
  return launch_reduction(site.driver, *site.kernels, reduction.dtype, site.stream, arguments);
}

/// Bytes that buckets of similar sizes share: what was too small stays until the group goes.
Result<std::byte*> scratch_of(const NcclCalls& calls, std::size_t bytes) {
  return calls.scratch(std::bit_ceil(bytes));
}

/// With kernels, where the launcher's thread has loaded them.
Result<CopySite> copies_by_kernels(const NcclCalls& calls) {
  const CopySite site = calls.copies();
  if (site.kernels == nullptr) {
    return make_error(ErrorCode::kInternal, "NCCL's thread has no kernels for reductions");
  }
  return site;
}

bool has_output(const std::vector<TensorSpan>& spans) {
  return std::ranges::any_of(spans, [](const TensorSpan& span) { return span.out != nullptr; });
}

/// Combines straight into the tensor where there is one alone, and else by way of `packed`.
Status combine_into(const std::vector<TensorSpan>& spans,
                    std::vector<const std::byte*> sources,
                    std::byte* packed,
                    const CopySite& site,
                    const Reduction& reduction) {
  if (!has_output(spans)) {
    return {};
  }
  std::byte* const out = spans.size() == 1 ? spans.front().out : packed;
  LIGHTCC_RETURN_IF_ERROR(combine(
      site, reduction, {.sources = std::move(sources), .out = out, .count = elements_of(spans)}));
  return spans.size() == 1
             ? Status()
             : unpack_tensors(
                   {.spans = spans, .element_bytes = element_size(reduction.dtype)}, packed, site);
}

// ---- A piece that each member combines.

/// Scratch: a place of `stride` bytes for what each member brings, and one for the result.
std::unique_ptr<Work> start_gathered(const KernelReductionSite& site,
                                     std::vector<TensorSpan> spans,
                                     const Reduction& reduction) {
  auto run = [rank = site.rank, size = site.size, spans = std::move(spans), reduction](
                 const NcclCalls& calls) -> Status {
    LIGHTCC_ASSIGN_OR_RETURN(const CopySite copies, copies_by_kernels(calls));
    const std::size_t element = element_size(reduction.dtype);
    const std::size_t bytes = elements_of(spans) * element;
    const std::size_t stride = aligned(bytes);
    LIGHTCC_ASSIGN_OR_RETURN(std::byte* const gathered, scratch_of(calls, (size + 1) * stride));
    std::byte* const own = gathered + rank * stride;
    // What is behind a tensor is not its own.
    const bool lies_ready = spans.size() == 1 && spans.front().in != nullptr && bytes == stride;
    if (!lies_ready) {
      LIGHTCC_RETURN_IF_ERROR(
          pack_tensors({.spans = spans, .element_bytes = element}, own, copies));
    }
    calls.when_taken([size, spans, reduction, copies, gathered, stride] {
      std::vector<const std::byte*> sources(size);
      for (std::size_t member = 0; member < size; ++member) {
        sources[member] = gathered + member * stride;
      }
      return combine_into(spans, std::move(sources), gathered + size * stride, copies, reduction);
    });
    return calls.check(calls.nccl().all_gather(lies_ready ? spans.front().in : own,
                                               gathered,
                                               stride,
                                               kNcclUint8,
                                               calls.comm(),
                                               calls.stream()),
                       "ncclAllGather");
  };
  return site.comms.start(site.comm, "ncclAllGather", std::move(run));
}

// ---- A piece of which each member combines a share.

/// Whether `next` begins where `span` ends.
bool goes_on(const TensorSpan& span, const TensorSpan& next, std::size_t element_bytes) {
  const std::size_t bytes = span.count * element_bytes;
  return (span.in == nullptr ? next.in == nullptr : span.in + bytes == next.in) &&
         (span.out == nullptr ? next.out == nullptr : span.out + bytes == next.out);
}

struct Shares {
  std::vector<std::vector<TensorSpan>> of;  // By member.
  std::size_t element_bytes = 1;

  std::size_t bytes_of(std::size_t member) const { return elements_of(of[member]) * element_bytes; }
  std::size_t max_bytes() const {
    std::size_t bytes = 0;
    for (std::size_t member = 0; member < of.size(); ++member) {
      bytes = std::max(bytes, bytes_of(member));
    }
    return bytes;
  }
  /// All of them, one behind the other. What is cut between members is one again.
  PackedTensors together() const {
    std::vector<TensorSpan> all;
    for (const std::vector<TensorSpan>& spans : of) {
      for (const TensorSpan& span : spans) {
        if (!all.empty() && goes_on(all.back(), span, element_bytes)) {
          all.back().count += span.count;
        } else {
          all.push_back(span);
        }
      }
    }
    return {.spans = std::move(all), .element_bytes = element_bytes};
  }
  /// Whether they can be sent from where they are.
  bool lie_ready() const {
    return std::ranges::all_of(of, [](const std::vector<TensorSpan>& spans) {
      return spans.empty() || (spans.size() == 1 && spans.front().in != nullptr);
    });
  }
  /// Where each of them is: ready, or among those that lie `packed`.
  std::vector<const std::byte*> inputs(const std::byte* packed) const {
    const bool ready = lie_ready();
    std::vector<const std::byte*> found;
    for (std::size_t member = 0; member < of.size(); ++member) {
      found.push_back(ready && !of[member].empty() ? of[member].front().in : packed);
      packed += bytes_of(member);
    }
    return found;
  }
};

/// Scratch: all shares one behind the other, each but the last ones in `stride` bytes where results
/// are gathered, and a place of `stride` bytes for what each member brings of the own share.
struct ShareScratch {
  std::byte* packed = nullptr;
  std::byte* received = nullptr;
  std::size_t stride = 0;
};

Result<ShareScratch> scratch_for(const NcclCalls& calls, const Shares& shares) {
  ShareScratch made{.stride = aligned(shares.max_bytes())};
  const std::size_t half = shares.of.size() * made.stride;
  LIGHTCC_ASSIGN_OR_RETURN(made.packed, scratch_of(calls, 2 * half));
  made.received = made.packed + half;
  return made;
}

/// Sends and receives, in a group of calls.
Status exchange(const NcclCalls& calls,
                const Shares& shares,
                std::size_t rank,
                const std::vector<const std::byte*>& inputs,
                const ShareScratch& scratch) {
  const std::size_t own = shares.bytes_of(rank);
  for (std::size_t member = 0; member < shares.of.size(); ++member) {
    const std::size_t theirs = shares.bytes_of(member);
    const int peer = static_cast<int>(member);
    if (member != rank && theirs > 0) {
      LIGHTCC_RETURN_IF_ERROR(calls.check(
          calls.nccl().send(inputs[member], theirs, kNcclUint8, peer, calls.comm(), calls.stream()),
          "ncclSend"));
    }
    if (member != rank && own > 0) {
      LIGHTCC_RETURN_IF_ERROR(
          calls.check(calls.nccl().recv(scratch.received + member * scratch.stride,
                                        own,
                                        kNcclUint8,
                                        peer,
                                        calls.comm(),
                                        calls.stream()),
                      "ncclRecv"));
    }
  }
  return {};
}

/// Combines the own share, into its tensors or, where `keeps_packed`, in its place among all.
std::unique_ptr<Work> start_scatter(const KernelReductionSite& site,
                                    const std::shared_ptr<const Shares>& shares,
                                    const Reduction& reduction,
                                    bool keeps_packed) {
  auto run = [rank = site.rank, shares, reduction, keeps_packed](const NcclCalls& calls) -> Status {
    LIGHTCC_ASSIGN_OR_RETURN(const CopySite copies, copies_by_kernels(calls));
    LIGHTCC_ASSIGN_OR_RETURN(const ShareScratch scratch, scratch_for(calls, *shares));
    if (!shares->lie_ready()) {
      LIGHTCC_RETURN_IF_ERROR(pack_tensors(shares->together(), scratch.packed, copies));
    }
    const std::vector<const std::byte*> inputs = shares->inputs(scratch.packed);
    calls.when_taken([=]() -> Status {
      const std::vector<TensorSpan>& own = shares->of[rank];
      if (own.empty()) {
        return {};
      }
      std::vector<const std::byte*> sources;
      std::byte* packed = scratch.packed;
      for (std::size_t member = 0; member < shares->of.size(); ++member) {
        sources.push_back(member == rank ? inputs[rank]
                                         : scratch.received + member * scratch.stride);
        packed += member < rank ? shares->bytes_of(member) : 0;
      }
      return keeps_packed ? combine(copies,
                                    reduction,
                                    {.sources = sources, .out = packed, .count = elements_of(own)})
                          : combine_into(own, sources, packed, copies, reduction);
    });
    return calls.in_group([&] { return exchange(calls, *shares, rank, inputs, scratch); });
  };
  return site.comms.start(site.comm, "ncclSend and ncclRecv", std::move(run));
}

/// Brings what the members have combined to all tensors, where results lie in scratch.
std::unique_ptr<Work> start_spread(const KernelReductionSite& site,
                                   const std::shared_ptr<const Shares>& shares) {
  auto run = [rank = site.rank, shares](const NcclCalls& calls) -> Status {
    LIGHTCC_ASSIGN_OR_RETURN(const ShareScratch scratch, scratch_for(calls, *shares));
    calls.when_taken([shares, packed = scratch.packed, copies = calls.copies()] {
      return unpack_tensors(shares->together(), packed, copies);
    });
    return calls.check(calls.nccl().all_gather(scratch.packed + rank * scratch.stride,
                                               scratch.packed,
                                               scratch.stride,
                                               kNcclUint8,
                                               calls.comm(),
                                               calls.stream()),
                       "ncclAllGather");
  };
  return site.comms.start(site.comm, "ncclAllGather", std::move(run));
}

/// All operations of a bucket. Where there is none, one that does nothing.
std::unique_ptr<Work> as_one(const KernelReductionSite& site,
                             std::vector<std::unique_ptr<Work>> works) {
  if (works.empty()) {
    works.push_back(site.comms.start(
        site.comm, "nothing", [](const NcclCalls& /*calls*/) { return Status(); }));
  }
  return all_of(std::move(works));
}

/// Elements of at most `bytes` bytes; at least one alignment of them.
std::size_t elements_in(std::size_t bytes, std::size_t element) {
  return std::max(bytes, kAlignment) / kAlignment * (kAlignment / element);
}

}  // namespace

std::unique_ptr<Work> start_kernel_allreduce(const KernelReductionSite& site,
                                             std::vector<TensorSpan> tensors,
                                             const Reduction& reduction) {
  const std::size_t element = element_size(reduction.dtype);
  const KernelReductions& kernels = site.comms.kernels();
  std::size_t left = elements_of(tensors);
  // Two members send as many bytes either way.
  const bool gathers = site.size <= 2 || site.size * left * element <= kernels.max_gathered_bytes;
  const std::size_t share = elements_in(kernels.piece_bytes / site.size, element);
  SpanReader reader(std::move(tensors), element);
  std::vector<std::unique_ptr<Work>> works;
  while (left > 0) {
    if (gathers) {
      works.push_back(start_gathered(site, reader.take(share), reduction));
      left -= std::min(left, share);
      continue;
    }
    const std::size_t count = std::min(left, share * site.size);
    // The same for all but the last members, who may have less.
    const std::size_t each = aligned((count + site.size - 1) / site.size * element) / element;
    const auto shares = std::make_shared<Shares>();
    shares->element_bytes = element;
    for (std::size_t member = 0; member < site.size; ++member) {
      const std::size_t first = std::min(count, member * each);
      shares->of.push_back(reader.take(std::min(each, count - first)));
    }
    works.push_back(start_scatter(site, shares, reduction, true));
    works.push_back(start_spread(site, shares));
    left -= count;
  }
  return as_one(site, std::move(works));
}

std::unique_ptr<Work> start_kernel_reduce_scatter(const KernelReductionSite& site,
                                                  std::vector<std::vector<TensorSpan>> shares,
                                                  const Reduction& reduction) {
  const std::size_t element = element_size(reduction.dtype);
  const std::size_t each = elements_in(site.comms.kernels().piece_bytes / site.size, element);
  std::size_t left = 0;
  std::vector<SpanReader> readers;
  for (std::vector<TensorSpan>& spans : shares) {
    left = std::max(left, elements_of(spans));
    readers.emplace_back(std::move(spans), element);
  }
  std::vector<std::unique_ptr<Work>> works;
  for (; left > 0; left -= std::min(left, each)) {
    const auto piece = std::make_shared<Shares>();
    piece->element_bytes = element;
    for (SpanReader& reader : readers) {
      piece->of.push_back(reader.take(each));
    }
    works.push_back(start_scatter(site, piece, reduction, false));
  }
  return as_one(site, std::move(works));
}

}  // namespace lightcc::cuda
