#include "lightcc_cuda/driver/gpus.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <utility>

#include "lightcc_cuda/driver/context.hpp"
#include "lightcc_cuda/driver/copy_launch.hpp"
#include "lightcc_cuda/driver/driver.hpp"
#include "lightcc_cuda/driver/kernel_table.hpp"

namespace lightcc::cuda {
namespace {

Status no_gpu(const std::string& why) {
  return {ErrorCode::kUnimplemented, "no GPU, because " + why};
}

/// As nvidia-smi writes it: in groups of 4, 2, 2, 2 and 6 bytes.
std::string uuid_text(const Uuid& uuid, bool is_slice) {
  std::string text = is_slice ? "MIG" : "GPU";
  for (std::size_t i = 0; i < uuid.bytes.size(); ++i) {
    if (i == 0 || (i >= 4 && i <= 10 && i % 2 == 0)) {
      text += '-';
    }
    std::array<char, 3> digits{};
    (void)std::snprintf(digits.data(),
                        digits.size(),
                        "%02x",
                        static_cast<unsigned>(static_cast<unsigned char>(uuid.bytes[i])));
    text += digits.data();
  }
  return text;
}

Result<Gpu> describe(const Driver& driver, int index) {
  Device device = 0;
  LIGHTCC_RETURN_IF_ERROR(driver.device(&device, index));
  Gpu gpu;
  std::array<char, 256> text{};
  const int size = static_cast<int>(text.size());
  LIGHTCC_RETURN_IF_ERROR(driver.device_name(text.data(), size, device));
  gpu.name = text.data();
  LIGHTCC_RETURN_IF_ERROR(driver.pci_bus_id(text.data(), size, device));
  gpu.pci_bus_id = text.data();
  // Where GPUs are divided (MIG), the driver shows slices as GPUs, which their names alone say.
  gpu.is_slice = gpu.name.find(" MIG ") != std::string::npos;
  if (driver.call().device_uuid != nullptr) {
    Uuid uuid{};
    LIGHTCC_RETURN_IF_ERROR(driver.device_uuid(&uuid, device));
    gpu.uuid = uuid_text(uuid, gpu.is_slice);
  }
  LIGHTCC_ASSIGN_OR_RETURN(const int capability, driver.capability(device));
  gpu.major = capability / 10;
  gpu.minor = capability % 10;
  gpu.is_precompiled = std::ranges::all_of(ptx_texts(), [&](const PtxText& ptx) {
    return cubin_for(cubins_in_library(), ptx.name, capability) != nullptr;
  });
  std::size_t bytes = 0;
  LIGHTCC_RETURN_IF_ERROR(driver.device_bytes(&bytes, device));
  gpu.bytes = bytes;
  if (gpu.major < kOldestMajor) {
    gpu.objection = "its compute capability is " + std::to_string(gpu.major) + '.' +
                    std::to_string(gpu.minor) + "; needed is " + std::to_string(kOldestMajor) +
                    ".0 or newer";
  }
  return gpu;
}

/// Which of the other GPUs one can read and write.
Result<std::vector<int>> peers_of(const Driver& driver, int index, int count) {
  Device own = 0;
  LIGHTCC_RETURN_IF_ERROR(driver.device(&own, index));
  std::vector<int> peers;
  for (int other = 0; other < count; ++other) {
    Device device = 0;
    int can = 0;
    LIGHTCC_RETURN_IF_ERROR(driver.device(&device, other));
    if (other != index) {
      LIGHTCC_RETURN_IF_ERROR(driver.can_access_peer(&can, own, device));
    }
    if (can != 0) {
      peers.push_back(other);
    }
  }
  return peers;
}

Result<Gpus> list_gpus(const Driver& driver) {
  Gpus gpus{.driver_version = driver.version(), .list = {}};
  int count = 0;
  LIGHTCC_RETURN_IF_ERROR(driver.device_count(&count));
  for (int index = 0; index < count; ++index) {
    LIGHTCC_ASSIGN_OR_RETURN(Gpu gpu, describe(driver, index));
    LIGHTCC_ASSIGN_OR_RETURN(gpu.peers, peers_of(driver, index, count));
    gpus.list.push_back(std::move(gpu));
  }
  return gpus;
}

// ---- The trial.

constexpr std::size_t kTrialElements = 10007;

/// Packs two tensors, of which the second begins at an odd address, and looks at the bucket.
Status pack_on(const Driver& driver, const KernelTable& kernels) {
  constexpr std::size_t kFirst = 4099;
  LIGHTCC_ASSIGN_OR_RETURN(const HostMemory host,
                           allocate_pinned_memory(driver, 2 * kTrialElements));
  LIGHTCC_ASSIGN_OR_RETURN(const DeviceMemory tensors,
                           allocate_device_memory(driver, kTrialElements + 1));
  LIGHTCC_ASSIGN_OR_RETURN(const DeviceMemory bucket,
                           allocate_device_memory(driver, kTrialElements));
  LIGHTCC_ASSIGN_OR_RETURN(const Stream stream, Stream::create(driver));
  auto* const sent = static_cast<unsigned char*>(host.get());
  unsigned char* const received = sent + kTrialElements;
  for (std::size_t i = 0; i < kTrialElements; ++i) {
    sent[i] = static_cast<unsigned char>(i * 7 + i / 251);
    received[i] = static_cast<unsigned char>(~sent[i]);
  }
  // One byte lies between the tensors.
  const Address second = tensors.get() + kFirst + 1;
  LIGHTCC_RETURN_IF_ERROR(driver.copy_to_device(tensors.get(), sent, kFirst, stream.get()));
  LIGHTCC_RETURN_IF_ERROR(
      driver.copy_to_device(second, sent + kFirst, kTrialElements - kFirst, stream.get()));
  const std::array<BucketPart, 2> parts{
      {{tensors.get(), 0, kFirst}, {second, kFirst, kTrialElements - kFirst}}};
  LIGHTCC_RETURN_IF_ERROR(
      copy_bucket(driver, kernels, bucket.get(), parts, Copying::kPack, stream.get()));
  LIGHTCC_RETURN_IF_ERROR(
      driver.copy_to_host(received, bucket.get(), kTrialElements, stream.get()));
  LIGHTCC_RETURN_IF_ERROR(stream.wait());
  if (std::memcmp(sent, received, kTrialElements) != 0) {
    return {ErrorCode::kInternal, "the GPU packed two tensors wrongly"};
  }
  return {};
}

}  // namespace

Result<Gpus> find_gpus() {
  const Result<Driver> driver = Driver::open();
  if (!driver.ok()) {
    return no_gpu(driver.status().message());
  }
  Result<Gpus> gpus = list_gpus(*driver);
  if (!gpus.ok()) {
    return no_gpu("the CUDA driver does not work here: " + gpus.status().message());
  }
  if (gpus->list.empty()) {
    return no_gpu("the CUDA driver has none for this process (see CUDA_VISIBLE_DEVICES)");
  }
  return gpus;
}

Status try_gpu(int index) {
  LIGHTCC_ASSIGN_OR_RETURN(const Driver driver, Driver::open());
  LIGHTCC_ASSIGN_OR_RETURN(const Gpu gpu, describe(driver, index));
  if (!gpu.objection.empty()) {
    return {ErrorCode::kUnimplemented, gpu.objection};
  }
  LIGHTCC_ASSIGN_OR_RETURN(const Context context, Context::retain(driver, index));
  const CurrentContext current(context);
  LIGHTCC_RETURN_IF_ERROR(current.status());
  LIGHTCC_RETURN_IF_ERROR(keep_freed_memory(driver, context.device()));
  LIGHTCC_ASSIGN_OR_RETURN(const SharedKernels kernels, shared_kernels(context));
  return pack_on(driver, *kernels);
}

}  // namespace lightcc::cuda
