// The driver itself, GPUs and contexts.
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <map>

#include "lightcc_cuda/fake_driver/calls.hpp"

namespace lightcc::cuda::fake {
namespace {

std::array<std::atomic<int>, 8> retained_contexts{};

}  // namespace
}  // namespace lightcc::cuda::fake

namespace cuda = lightcc::cuda;
namespace fake = lightcc::cuda::fake;
using cuda::Code;
using cuda::Device;
using cuda::Option;
using fake::settings;

LIGHTCC_API cuInit(unsigned /*flags*/) {
  return settings().number("init");
}
LIGHTCC_API cuDriverGetVersion(int* version) {
  *version = settings().number("version");
  return cuda::kSuccess;
}
LIGHTCC_API cuGetErrorName(Code code, const char** name) {
  static const std::map<Code, const char*> kNames{{1, "CUDA_ERROR_INVALID_VALUE"},
                                                  {2, "CUDA_ERROR_OUT_OF_MEMORY"},
                                                  {100, "CUDA_ERROR_NO_DEVICE"},
                                                  {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"},
                                                  {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
                                                  {719, "CUDA_ERROR_LAUNCH_FAILED"},
                                                  {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
                                                  {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"}};
  const auto found = kNames.find(code);
  *name = found == kNames.end() ? nullptr : found->second;
  return found == kNames.end() ? fake::kInvalidValue : cuda::kSuccess;
}
LIGHTCC_API cuGetErrorString(Code /*code*/, const char** text) {
  *text = "of the fake driver";
  return cuda::kSuccess;
}

LIGHTCC_API cuDeviceGetCount(int* count) {
  LIGHTCC_MAY_FAIL("cuDeviceGetCount")
  *count = settings().number("devices");
  return cuda::kSuccess;
}
LIGHTCC_API cuDeviceGet(Device* device, int index) {
  LIGHTCC_MAY_FAIL("cuDeviceGet")
  *device = index;
  return index >= 0 && index < settings().number("devices") ? cuda::kSuccess : fake::kInvalidDevice;
}
LIGHTCC_API cuDeviceGetName(char* name, int bytes, Device /*device*/) {
  const char* const shown =
      settings().number("mig") != 0 ? "Simulated GPU MIG 1g.5gb" : "Simulated GPU";
  (void)std::snprintf(name, static_cast<std::size_t>(bytes), "%s", shown);
  return cuda::kSuccess;
}
LIGHTCC_API cuDeviceGetAttribute(int* value, Option attribute, Device /*device*/) {
  const int capability = settings().number("capability");
  *value = attribute == cuda::kMajorOfCapability   ? capability / 10
           : attribute == cuda::kMinorOfCapability ? capability % 10
           : attribute == cuda::kMemoryPools       ? settings().number("pools")
                                                   : 2;
  return cuda::kSuccess;
}
LIGHTCC_API cuDeviceTotalMem_v2(std::size_t* bytes, Device /*device*/) {
  *bytes = fake::memory_bytes();
  return cuda::kSuccess;
}
LIGHTCC_API cuDeviceGetPCIBusId(char* id, int bytes, Device device) {
  // Slices are of one GPU.
  const int bus = settings().number("bus") + (settings().number("mig") != 0 ? 0 : device);
  (void)std::snprintf(id, static_cast<std::size_t>(bytes), "0000:%02x:00.0", bus);
  return cuda::kSuccess;
}
static Code device_uuid(cuda::Uuid* uuid, Device device) {
  LIGHTCC_MAY_FAIL("cuDeviceGetUuid_v2")
  uuid->bytes = {'\x1f', '\xff'};
  uuid->bytes[14] = static_cast<char>(settings().number("bus"));
  uuid->bytes[15] = static_cast<char>(device);
  return cuda::kSuccess;
}
LIGHTCC_MAY_LACK(cuDeviceGetUuid_v2, device_uuid)
LIGHTCC_API cuDeviceCanAccessPeer(int* can, Device device, Device peer) {
  LIGHTCC_MAY_FAIL("cuDeviceCanAccessPeer")
  if (device == peer) {
    return fake::kInvalidDevice;
  }
  // As on a host with two sockets: in pairs.
  *can = settings().number("mig") == 0 && device / 2 == peer / 2 ? 1 : 0;
  return cuda::kSuccess;
}

LIGHTCC_API cuDevicePrimaryCtxRetain(cuda::ContextHandle** context, Device device) {
  LIGHTCC_MAY_FAIL("cuDevicePrimaryCtxRetain")
  static cuda::ContextHandle all[] = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}};
  *context = &all[device];
  ++fake::live_objects;
  ++fake::retained_contexts.at(static_cast<std::size_t>(device));
  return cuda::kSuccess;
}
LIGHTCC_API cuDevicePrimaryCtxRelease_v2(Device device) {
  --fake::live_objects;
  --fake::retained_contexts.at(static_cast<std::size_t>(device));
  return cuda::kSuccess;
}
LIGHTCC_API cuDevicePrimaryCtxGetState(Device device, unsigned* flags, int* is_active) {
  LIGHTCC_MAY_FAIL("cuDevicePrimaryCtxGetState")
  *flags = 0;
  *is_active = fake::retained_contexts.at(static_cast<std::size_t>(device)) > 0 ? 1 : 0;
  return cuda::kSuccess;
}
LIGHTCC_API cuCtxPushCurrent_v2(cuda::ContextHandle* context) {
  LIGHTCC_MAY_FAIL("cuCtxPushCurrent_v2")
  fake::contexts.push_back(context);
  return cuda::kSuccess;
}
LIGHTCC_API cuCtxGetDevice(Device* device) {
  LIGHTCC_NEEDS_CONTEXT("cuCtxGetDevice")
  *device = fake::contexts.back()->device;
  return cuda::kSuccess;
}
LIGHTCC_API cuCtxPopCurrent_v2(cuda::ContextHandle** context) {
  if (fake::contexts.empty()) {
    return fake::kInvalidContext;
  }
  *context = fake::contexts.back();
  fake::contexts.pop_back();
  return cuda::kSuccess;
}
