// The driver is opened, and GPUs are found and tried, on a fake of the driver's.
#include <deque>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc_cuda/driver/driver.hpp"
#include "lightcc_cuda/driver/gpus.hpp"
#include "lightcc_cuda/driver/kernel_images.hpp"
#include "lightcc_cuda/driver/kernel_table.hpp"
#include "lightcc_cuda/fake_driver/fake_driver.hpp"
#include "lightcc_cuda/gpu_tensors.hpp"

namespace lightcc::cuda::cuda_driver_test {
namespace {

using testing::value;

/// The fake behaves so in a test, and nothing is left of what the test made.
class Fake {
 public:
  explicit Fake(const std::string& settings) { fake::set(settings); }
  Fake(const Fake&) = delete;
  Fake& operator=(const Fake&) = delete;
  ~Fake() {
    fake::set("");
    EXPECT_EQ(fake::live(), 0);
  }
};

TEST(CudaDriver, finds_gpus_and_describes_them) {
  const Fake fake("devices=3,capability=86,version=13000");
  const Gpus gpus = value(find_gpus());
  EXPECT_EQ(gpus.driver_version, 13000);
  ASSERT_EQ(gpus.list.size(), 3U);
  const Gpu& second = gpus.list[1];
  EXPECT_EQ(second.name, "Simulated GPU");
  EXPECT_EQ(second.major, 8);
  EXPECT_EQ(second.minor, 6);
  EXPECT_EQ(second.bytes, std::uint64_t{1} << 30);
  EXPECT_EQ(second.pci_bus_id, "0000:02:00.0");
  EXPECT_EQ(second.uuid, "GPU-1fff0000-0000-0000-0000-000000000101");
  EXPECT_FALSE(second.is_slice);
  EXPECT_EQ(second.objection, "");
  EXPECT_EQ(gpus.list[0].peers, std::vector<int>{1});
  EXPECT_EQ(gpus.list[1].peers, std::vector<int>{0});
  EXPECT_EQ(gpus.list[2].peers, std::vector<int>());
}

TEST(CudaDriver, slices_of_a_gpu_differ_in_their_uuids_alone) {
  const Fake fake("devices=2,mig=1");
  const Gpus gpus = value(find_gpus());
  EXPECT_TRUE(gpus.list[0].is_slice);
  EXPECT_EQ(gpus.list[0].pci_bus_id, gpus.list[1].pci_bus_id);
  EXPECT_EQ(gpus.list[0].uuid, "MIG-1fff0000-0000-0000-0000-000000000100");
  EXPECT_EQ(gpus.list[1].uuid, "MIG-1fff0000-0000-0000-0000-000000000101");
}

TEST(CudaDriver, a_driver_before_cuda_11_4_tells_no_uuid) {
  const Fake fake("devices=2,version=11030,without=cuDeviceGetUuid_v2");
  const Gpus gpus = value(find_gpus());
  ASSERT_EQ(gpus.list.size(), 2U);
  for (const Gpu& gpu : gpus.list) {
    EXPECT_EQ(gpu.uuid, "");
    EXPECT_EQ(gpu.name, "Simulated GPU");
    EXPECT_EQ(gpu.objection, "");
  }
  EXPECT_EQ(gpus.list[1].pci_bus_id, "0000:02:00.0");
  EXPECT_EQ(try_gpu(1).message(), "");
}

TEST(CudaDriver, a_machine_without_a_driver_has_no_gpu) {
  const auto driver = Driver::open("no_such_library.so.1");
  EXPECT_EQ(driver.status().code(), ErrorCode::kUnimplemented);
  EXPECT_NE(driver.status().message().find("the CUDA driver cannot be opened: no_such_library"),
            std::string::npos)
      << driver.status().message();
}

TEST(CudaDriver, a_library_that_lacks_a_function_is_broken) {
  const auto driver = Driver::open("libm.so.6");
  EXPECT_EQ(driver.status().message(), "the CUDA driver libm.so.6 is broken: it has no cuInit");
}

TEST(CudaDriver, says_why_there_is_no_gpu) {
  const std::string broken = "the CUDA driver does not work here: ";
  const std::string mismatch = ": CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (of the fake driver)";
  const std::pair<std::string, std::string> cases[] = {
      {"version=10020",
       "the CUDA driver libcuda.so.1 is for CUDA 10.2; needed is one for CUDA 11.2 (version 460) "
       "or "
       "newer"},
      {"init=100", broken + "cuInit: CUDA_ERROR_NO_DEVICE (of the fake driver)"},
      {"init=4711", broken + "cuInit: CUDA error 4711"},
      {"devices=0", "the CUDA driver has none for this process (see CUDA_VISIBLE_DEVICES)"},
      {"fail=cuDeviceGetCount:803:1", broken + "cuDeviceGetCount" + mismatch},
      {"fail=cuDeviceGetUuid_v2:803:1", broken + "cuDeviceGetUuid" + mismatch},
      {"devices=2,fail=cuDeviceCanAccessPeer:803:1", broken + "cuDeviceCanAccessPeer" + mismatch}};
  for (const auto& [settings, why] : cases) {
    const Fake fake(settings);
    const Status none = find_gpus().status();
    EXPECT_EQ(none.code(), ErrorCode::kUnimplemented);
    EXPECT_EQ(none.message(), "no GPU, because " + why);
  }
}

TEST(CudaDriver, an_old_gpu_is_listed_with_what_it_lacks) {
  const Fake fake("capability=61");
  const Gpus gpus = value(find_gpus());
  EXPECT_EQ(gpus.list[0].objection, "its compute capability is 6.1; needed is 7.0 or newer");
  EXPECT_EQ(try_gpu(0).message(), gpus.list[0].objection);
}

TEST(CudaDriver, the_library_holds_every_kernel) {
  std::string all;
  for (const PtxText& ptx : ptx_texts()) {
    EXPECT_TRUE(std::string(ptx.text).starts_with(".version 7.0\n.target sm_70\n")) << ptx.name;
    all += ptx.text;
  }
  const std::vector<std::string>& names = kernel_names();
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
  for (const std::string& name : names) {
    EXPECT_NE(all.find(".visible .entry " + name + "("), std::string::npos) << name;
  }
  std::size_t entries = 0;
  for (std::size_t at = all.find(".visible .entry "); at != std::string::npos;
       at = all.find(".visible .entry ", at + 1)) {
    ++entries;
  }
  EXPECT_EQ(entries, names.size());
}

TEST(CudaDriver, a_gpu_is_tried_with_a_kernel) {
  const Fake fake("devices=2,delay_us=300");
  EXPECT_EQ(try_gpu(0).message(), "");
  EXPECT_EQ(try_gpu(1).message(), "");
  EXPECT_EQ(try_gpu(2).message(), "cuDeviceGet: CUDA error 101");
}

TEST(CudaDriver, a_trial_says_what_is_wrong_with_a_gpu) {
  const std::tuple<std::string, ErrorCode, std::string> cases[] = {
      {"wrong=1", ErrorCode::kInternal, "the GPU packed two tensors wrongly"},
      {"ptx=0",
       ErrorCode::kUnimplemented,
       "the GPU's driver cannot load the kernels 'bucket': cuModuleLoadDataEx: "
       "CUDA_ERROR_UNSUPPORTED_PTX_VERSION (of the fake driver): ptxas: this is not for me"},
      // Before CUDA 12.4 a driver loads functions when it finds them.
      {"without=cuFuncLoad,fail=cuFuncLoad:2:1", ErrorCode::kOk, ""}};
  for (const auto& [settings, code, message] : cases) {
    const Fake fake(settings);
    const Status tried = try_gpu(0);
    EXPECT_EQ(tried.code(), code);
    EXPECT_EQ(tried.message(), message);
  }
}

/// What the fake takes for machine code, of every file; keeps the images.
class FakeCubins {
 public:
  explicit FakeCubins(int capability) {
    for (const PtxText& ptx : ptx_texts()) {
      images_.push_back(std::string(fake::kCubinMagic) + ptx.text);
      cubins_.push_back({ptx.name, capability, images_.back().c_str()});
    }
  }
  const std::vector<Cubin>& get() const { return cubins_; }

 private:
  std::deque<std::string> images_;
  std::vector<Cubin> cubins_;
};

/// Loads all kernels on a GPU of this capability.
Status load_on(int capability, const std::string& settings, const std::vector<Cubin>& cubins) {
  const Fake fake("capability=" + std::to_string(capability) + "," + settings);
  const testing::Framework framework;
  const auto loaded = KernelTable::load(framework.driver(), cubins);
  EXPECT_TRUE(!loaded.ok() || loaded->size() == kernel_names().size());
  return loaded.status();
}

TEST(CudaDriver, machine_code_is_taken_where_there_is_some_for_the_gpu) {
  const FakeCubins cubins(86);
  EXPECT_EQ(load_on(86, "ptx=0", cubins.get()).message(), "");
  EXPECT_EQ(load_on(89, "ptx=0", cubins.get()).message(), "");  // It has the same major number.
  for (const int other : {80, 90}) {
    EXPECT_FALSE(load_on(other, "ptx=0", cubins.get()).ok()) << other;
    EXPECT_EQ(load_on(other, "ptx=1", cubins.get()).message(), "") << other;
  }
}

TEST(CudaDriver, ptx_is_taken_where_the_driver_takes_no_machine_code) {
  const FakeCubins cubins(90);
  EXPECT_EQ(load_on(90, "cubin=0", cubins.get()).message(), "");
  EXPECT_FALSE(load_on(90, "cubin=0,ptx=0", cubins.get()).ok());
}

TEST(CudaDriver, of_several_cubins_the_nearest_one_below_is_taken) {
  const std::vector<Cubin> cubins{
      {"a", 80, ""}, {"a", 89, ""}, {"a", 86, ""}, {"b", 87, ""}, {"a", 90, ""}};
  const auto chosen = [&](int capability) {
    const Cubin* const cubin = cubin_for(cubins, "a", capability);
    return cubin == nullptr ? 0 : cubin->capability;
  };
  EXPECT_EQ(chosen(80), 80);
  EXPECT_EQ(chosen(87), 86);
  EXPECT_EQ(chosen(89), 89);
  EXPECT_EQ(chosen(75), 0);
  EXPECT_EQ(chosen(100), 0);
}

/// Any call may fail, once or for ever. Fake looks for what is left then.
TEST(CudaDriver, every_call_may_fail) {
  const std::vector<std::string> calls{"cuDeviceGet",
                                       "cuDevicePrimaryCtxRetain",
                                       "cuCtxPushCurrent_v2",
                                       "cuModuleLoadDataEx",
                                       "cuModuleGetFunction",
                                       "cuFuncLoad",
                                       "cuCtxGetStreamPriorityRange",
                                       "cuStreamCreateWithPriority",
                                       "cuMemHostAlloc",
                                       "cuMemAlloc_v2",
                                       "cuMemcpyHtoDAsync_v2",
                                       "cuLaunchKernel",
                                       "cuMemcpyDtoHAsync_v2",
                                       "cuStreamSynchronize"};
  for (const std::string& call : calls) {
    for (const int code : {2, 700}) {
      const Fake fake("fail=" + call + ":" + std::to_string(code) + ":1");
      Status tried;
      std::thread([&] { tried = try_gpu(0); }).join();  // A broken GPU keeps the thread's mode.
      EXPECT_FALSE(tried.ok()) << call;
      // Without the number of the version.
      EXPECT_NE(tried.message().find(call.substr(0, call.find('_'))), std::string::npos)
          << tried.message();
    }
  }
}

}  // namespace
}  // namespace lightcc::cuda::cuda_driver_test
