#include "lightcc_cuda/driver/kernel_table.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "lightcc/base/mutex.hpp"

#include "lightcc_cuda/kernels/all.hpp"

namespace lightcc::cuda {
namespace {

constexpr std::size_t kLogBytes = 4096;

/// Takes a cubin for the GPU, where there is one that the driver takes, and else the PTX.
Result<Module> load_module(const Driver& driver,
                           std::span<const Cubin> cubins,
                           int capability,
                           const PtxText& ptx) {
  ModuleHandle* handle = nullptr;
  const Cubin* const cubin = cubin_for(cubins, ptx.name, capability);
  if (cubin != nullptr &&
      driver.call().load_module(&handle, cubin->image, 0, nullptr, nullptr) == kSuccess) {
    return Module(driver, handle);
  }
  std::array<char, kLogBytes> log{};
  std::array<Option, 2> options{kJitErrorLog, kJitErrorLogBytes};
  // The driver takes each value in the place of a pointer, numbers as well.
  std::array<void*, 2> values{log.data(),
                              reinterpret_cast<void*>(std::uintptr_t{kLogBytes})};  // NOLINT
  const Code code = driver.call().load_module(
      &handle, ptx.text, static_cast<unsigned>(options.size()), options.data(), values.data());
  if (code == kSuccess) {
    return Module(driver, handle);
  }
  log.back() = '\0';
  std::string own_words = log.data();
  if (!own_words.empty()) {
    own_words = ": " + own_words;
  }
  return Status(ErrorCode::kUnimplemented,
                std::string("the GPU's driver cannot load the kernels '") + ptx.name +
                    "': " + driver.check(code, "cuModuleLoadDataEx").message() + own_words);
}

/// Finds `name` in the first module that has it.
Result<FunctionHandle*> find_function(const Driver& driver,
                                      const std::vector<Module>& modules,
                                      const std::string& name) {
  FunctionHandle* function = nullptr;
  Code code = kSuccess;
  for (const Module& module : modules) {
    code = driver.call().get_function(&function, module.get(), name.c_str());
    if (code != kErrorNotFound) {
      break;
    }
  }
  LIGHTCC_RETURN_IF_ERROR(driver.check(code, "cuModuleGetFunction of " + name));
  // Drivers from CUDA 11.7 on may leave a function where it is when its module is loaded. As their
  // guide says, cuModuleGetFunction() has loaded it by now. The newer call makes sure of that, and
  // does nothing where it is so.
  if (driver.call().load_function != nullptr) {
    LIGHTCC_RETURN_IF_ERROR(
        driver.check(driver.call().load_function(function), "cuFuncLoad of " + name));
  }
  return function;
}

}  // namespace

const std::vector<std::string>& kernel_names() {
#define LIGHTCC_NAME(name, ...) #name,
  static const std::vector<std::string> kNames{LIGHTCC_ALL_KERNELS(LIGHTCC_NAME)};
#undef LIGHTCC_NAME
  return kNames;
}

Result<KernelTable> KernelTable::load(const Driver& driver, std::span<const Cubin> cubins) {
  KernelTable table;
  Device device = 0;
  LIGHTCC_RETURN_IF_ERROR(driver.current_device(&device));
  LIGHTCC_ASSIGN_OR_RETURN(const int capability, driver.capability(device));
  for (const PtxText& ptx : ptx_texts()) {
    LIGHTCC_ASSIGN_OR_RETURN(Module module, load_module(driver, cubins, capability, ptx));
    table.modules_.push_back(std::move(module));
  }
  for (const std::string& name : kernel_names()) {
    LIGHTCC_ASSIGN_OR_RETURN(table.functions_[name], find_function(driver, table.modules_, name));
  }
  return table;
}

Result<SharedKernels> shared_kernels(const Context& context) {
  struct Owner {
    Driver driver;  // The modules' own, as who loads them may go before who unloads them.
    std::optional<KernelTable> kernels;
  };
  struct Loaded {
    Mutex mutex;
    std::map<ContextHandle*, std::weak_ptr<const KernelTable>> of LIGHTCC_GUARDED_BY(mutex);
  };
  static auto* const kLoaded = new Loaded;  // Threads may end after static objects do.
  const MutexLock lock(kLoaded->mutex);
  std::weak_ptr<const KernelTable>& known = kLoaded->of[context.handle()];
  if (SharedKernels kernels = known.lock(); kernels != nullptr) {
    return kernels;
  }
  const auto owner = std::make_shared<Owner>(Owner{context.driver(), std::nullopt});
  LIGHTCC_ASSIGN_OR_RETURN(KernelTable kernels, KernelTable::load(owner->driver));
  owner->kernels = std::move(kernels);
  const SharedKernels shared(owner, &*owner->kernels);
  known = shared;
  return shared;
}

FunctionHandle* KernelTable::find(std::string_view name) const {
  const auto found = functions_.find(std::string(name));
  return found == functions_.end() ? nullptr : found->second;
}

}  // namespace lightcc::cuda
