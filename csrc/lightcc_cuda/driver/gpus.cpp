#include "lightcc_cuda/driver/gpus.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <utility>

#include "lightcc_cuda/driver/context.hpp"
#include "lightcc_cuda/driver/cubins.hpp"
#include "lightcc_cuda/driver/driver.hpp"
#include "lightcc_cuda/driver/kernel_table.hpp"
#include "lightcc_cuda/driver/ptx.hpp"
#include "lightcc_cuda/kernels/bucket.hpp"

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

/// Where GPUs are divided (MIG), the driver shows slices as GPUs, and says so in their names alone.
bool is_name_of_slice(const std::string& name) {
  return name.find(" MIG ") != std::string::npos;
}

Result<Gpu> describe(const Driver& driver, int index) {
  Device device = 0;
  LIGHTCC_RETURN_IF_ERROR(driver.check(driver.call().device(&device, index), "cuDeviceGet"));
  Gpu gpu;
  std::array<char, 256> text{};
  const int size = static_cast<int>(text.size());
  LIGHTCC_RETURN_IF_ERROR(
      driver.check(driver.call().device_name(text.data(), size, device), "cuDeviceGetName"));
  gpu.name = text.data();
  LIGHTCC_RETURN_IF_ERROR(
      driver.check(driver.call().pci_bus_id(text.data(), size, device), "cuDeviceGetPCIBusId"));
  gpu.pci_bus_id = text.data();
  gpu.is_slice = is_name_of_slice(gpu.name);
  if (driver.call().device_uuid != nullptr) {
    Uuid uuid{};
    LIGHTCC_RETURN_IF_ERROR(
        driver.check(driver.call().device_uuid(&uuid, device), "cuDeviceGetUuid"));
    gpu.uuid = uuid_text(uuid, gpu.is_slice);
  }
  const std::array<std::pair<Option, int*>, 2> attributes{
      {{kMajorOfCapability, &gpu.major}, {kMinorOfCapability, &gpu.minor}}};
  for (const auto& [attribute, value] : attributes) {
    LIGHTCC_RETURN_IF_ERROR(driver.check(driver.call().device_attribute(value, attribute, device),
                                         "cuDeviceGetAttribute"));
  }
  gpu.is_precompiled = std::ranges::all_of(ptx_texts(), [&](const PtxText& ptx) {
    return cubin_for(cubins_in_library(), ptx.name, 10 * gpu.major + gpu.minor) != nullptr;
  });
  std::size_t bytes = 0;
  LIGHTCC_RETURN_IF_ERROR(
      driver.check(driver.call().device_bytes(&bytes, device), "cuDeviceTotalMem"));
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
  LIGHTCC_RETURN_IF_ERROR(driver.check(driver.call().device(&own, index), "cuDeviceGet"));
  std::vector<int> peers;
  for (int other = 0; other < count; ++other) {
    Device device = 0;
    int can = 0;
    LIGHTCC_RETURN_IF_ERROR(driver.check(driver.call().device(&device, other), "cuDeviceGet"));
    if (other == index) {
      continue;
    }
    LIGHTCC_RETURN_IF_ERROR(
        driver.check(driver.call().can_access_peer(&can, own, device), "cuDeviceCanAccessPeer"));
    if (can != 0) {
      peers.push_back(other);
    }
  }
  return peers;
}

Result<Gpus> list_gpus(const Driver& driver) {
  Gpus gpus{.driver_version = driver.version(), .list = {}};
  int count = 0;
  LIGHTCC_RETURN_IF_ERROR(driver.check(driver.call().device_count(&count), "cuDeviceGetCount"));
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
  LIGHTCC_RETURN_IF_ERROR(
      driver.check(driver.call().copy_to_device(tensors.get(), sent, kFirst, stream.get()),
                   "cuMemcpyHtoDAsync"));
  LIGHTCC_RETURN_IF_ERROR(driver.check(
      driver.call().copy_to_device(second, sent + kFirst, kTrialElements - kFirst, stream.get()),
      "cuMemcpyHtoDAsync"));
  BucketArguments arguments{};
  arguments.rows[0] = {reinterpret_cast<u8*>(tensors.get()), 0};  // NOLINT: addresses of the GPU
  arguments.rows[1] = {reinterpret_cast<u8*>(second), kFirst};    // NOLINT
  arguments.bucket = reinterpret_cast<u8*>(bucket.get());         // NOLINT
  arguments.total = kTrialElements;
  arguments.count = 2;
  LIGHTCC_RETURN_IF_ERROR(
      launch(driver, kernels.find("lightcc_copy_1"), 3, kBucketThreads, stream.get(), arguments));
  LIGHTCC_RETURN_IF_ERROR(
      driver.check(driver.call().copy_to_host(received, bucket.get(), kTrialElements, stream.get()),
                   "cuMemcpyDtoHAsync"));
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
