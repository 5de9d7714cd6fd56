// The operations that graphs know, each with its kernels. This file is the list of them;
// lightcc/tensorflow says in Python what they mean.
//
// A kernel for GPUs is that for CPUs: it takes all tensors in the host's memory, and TensorFlow
// copies. Operations may so stay on the device that a program names, or that their neighbours have.
//
// All are stateful, so that TensorFlow neither computes one only once, nor takes two for the same.
// Their names and attributes are in saved graphs: new attributes need defaults, old ones stay.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lightcc/base/export.hpp"
#include "lightcc/engine/current_world.hpp"

#include "attributes.hpp"
#include "call.hpp"
#include "done.hpp"
#include "shapes.hpp"
#include "tf_api.hpp"

namespace lightcc::tf {
namespace {

using Texts = std::vector<const char*>;

constexpr const char* kTypes =
    "T: {uint8, int8, uint16, int16, int32, int64, half, bfloat16, float, double, bool}";
constexpr const char* kTypeList =
    "Ts: list({uint8, int8, uint16, int16, int32, int64, half, bfloat16, float, double, bool}) >= "
    "1";

struct OpDefinition {
  const char* name;
  Texts attributes;
  Texts inputs;
  Texts outputs;
  InferShapes infer;
};

Status register_definition(const OpDefinition& definition) {
  OpDefinitionBuilder* const builder = api().new_op(definition.name);
  for (const char* attribute : definition.attributes) {
    api().add_attribute(builder, attribute);
  }
  for (const char* input : definition.inputs) {
    api().add_input(builder, input);
  }
  for (const char* output : definition.outputs) {
    api().add_output(builder, output);
  }
  api().set_is_stateful(builder, true);
  api().set_shape_function(builder, definition.infer);
  CallStatus status;
  api().register_op(builder, status.get());
  return status.to_status(definition.name);
}

/// `make` returns a builder of the operation's kernel for a device.
template <typename MakeBuilder>
Status register_kernels(const OpDefinition& definition, MakeBuilder make) {
  CallStatus status;
  api().register_kernel(definition.name, make("CPU"), status.get());
  LIGHTCC_RETURN_IF_ERROR(status.to_status(definition.name));
  KernelBuilder* const builder = make("GPU");
  for (const Texts& arguments : {definition.inputs, definition.outputs}) {
    for (const std::string_view argument : arguments) {
      const std::string name(argument.substr(0, argument.find(':')));
      api().set_host_memory(builder, name.c_str());
    }
  }
  api().register_kernel(definition.name, builder, status.get());
  return status.to_status(definition.name);
}

void fail_construction(KernelConstruction* node, const Status& error) {
  CallStatus status;
  status.set(TfCode::kInvalidArgument, error.message().c_str());
  api().construction_failure(node, status.get());
}

// -- Collectives ---------------------------------------------------------------------------------

template <OpType Op, bool IsList, bool IsTuned>
void* create_collective(KernelConstruction* node) {
  Result<Collective> collective = read_collective(node, Op, IsList, IsTuned);
  if (!collective.ok()) {
    fail_construction(node, collective.status());
    return nullptr;
  }
  return new Collective(std::move(*collective));
}

void delete_collective(void* kernel) {
  delete static_cast<Collective*>(kernel);
}

// NOLINTNEXTLINE(misc-const-correctness): the type is TensorFlow's.
void compute_collective(void* kernel, KernelContext* context, AsyncDone* done) {
  static const bool kExpected = is_done_as_expected(done);  // The same for each call.
  if (!kExpected) {
    fail(context,
         make_error(ErrorCode::kUnimplemented,
                    "this TensorFlow calls asynchronous operations in a way that this lightcc does "
                    "not know: use a newer lightcc, or TensorFlow 2.14 to 2.21"));
    api().run_done(done);
    return;
  }
  start_collective(*static_cast<const Collective*>(kernel), context, take_done(done));
}

template <OpType Op, bool IsList, bool IsTuned = false>
Status register_collective(const OpDefinition& definition) {
  LIGHTCC_RETURN_IF_ERROR(register_definition(definition));
  return register_kernels(definition, [&](const char* device) {
    return api().new_async_kernel(definition.name,
                                  device,
                                  &create_collective<Op, IsList, IsTuned>,
                                  &compute_collective,
                                  &delete_collective);
  });
}

Texts operator+(Texts left, const Texts& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

const Texts& common_attributes() {
  static const Texts kCommon{"process_set_id: int = 0",
                             "tensor_name: string = ''",
                             "naming: {'counted', 'given', 'node', 'node_base'} = 'node'"};
  return kCommon;
}

const Texts& list_attributes() {
  static const Texts kList{kTypeList, "names: list(string) = []", "together: bool = true"};
  return kList;
}

// One of a single tensor, and one of a list of any types.
template <OpType Op>
Status register_pair(const char* name,
                     const char* list_name,
                     const Texts& attributes,
                     InferShapes infer) {
  const Texts common = common_attributes() + attributes;
  LIGHTCC_RETURN_IF_ERROR((register_collective<Op, false>({.name = name,
                                                           .attributes = Texts{kTypes} + common,
                                                           .inputs = {"tensor: T"},
                                                           .outputs = {"output: T"},
                                                           .infer = infer})));
  return register_collective<Op, true>({.name = list_name,
                                        .attributes = list_attributes() + common,
                                        .inputs = {"tensors: Ts"},
                                        .outputs = {"outputs: Ts"},
                                        .infer = infer});
}

Status register_collectives() {
  const Texts reduction{
      "reduce_op: int = 1", "prescale_factor: string = '1'", "postscale_factor: string = '1'"};
  const Texts fusion{"fusion_rule: int = 0", "fusion_limit: int = 0"};
  const Texts allreduce{"topk_ratio: string = '0'",
                        "topk_momentum: string = '0'",
                        "topk_warmup_steps: int = 0",
                        "topk_fp16: bool = false",
                        "topk_exact: bool = false",
                        "quantize_bits: int = 0"};
  LIGHTCC_RETURN_IF_ERROR(register_pair<OpType::kAllreduce>(
      "LightccAllreduce", "LightccGroupedAllreduce", reduction + allreduce + fusion, &infer_same));
  // Which attributes of compression would say is an input here, so that steps of a graph differ. A
  // row for each tensor: bits of an element, 0: not quantised; share of top-k, 0: no top-k.
  LIGHTCC_RETURN_IF_ERROR((register_collective<OpType::kAllreduce, true, true>(
      {.name = "LightccTunedAllreduce",
       .attributes = list_attributes() + common_attributes() + reduction + fusion,
       .inputs = {"tensors: Ts", "ways: double"},
       .outputs = {"outputs: Ts"},
       .infer = &infer_same_but_last})));
  LIGHTCC_RETURN_IF_ERROR(register_pair<OpType::kAllgather>(
      "LightccAllgather", "LightccGroupedAllgather", {"sequence: string = ''"}, &infer_other_rows));
  LIGHTCC_RETURN_IF_ERROR(register_pair<OpType::kBroadcast>(
      "LightccBroadcast", "LightccGroupedBroadcast", {"root_rank: int"}, &infer_same));
  LIGHTCC_RETURN_IF_ERROR(register_pair<OpType::kReducescatter>(
      "LightccReducescatter", "LightccGroupedReducescatter", reduction, &infer_other_rows));
  LIGHTCC_RETURN_IF_ERROR((register_collective<OpType::kAlltoall, false>(
      {.name = "LightccAlltoall",
       .attributes = {kTypes,
                      "process_set_id: int = 0",
                      "tensor_name: string = ''",
                      "naming: {'counted', 'given', 'node', 'node_base'} = 'node'"},
       .inputs = {"tensor: T", "splits: int32"},
       .outputs = {"output: T", "received_splits: int32"},
       .infer = &infer_alltoall})));
  LIGHTCC_RETURN_IF_ERROR((register_collective<OpType::kJoin, false>({.name = "LightccJoin",
                                                                      .attributes = {},
                                                                      .inputs = {},
                                                                      .outputs = {"rank: int32"},
                                                                      .infer = &infer_scalar})));
  return register_collective<OpType::kBarrier, false>({.name = "LightccBarrier",
                                                       .attributes = {"process_set_id: int = 0"},
                                                       .inputs = {},
                                                       .outputs = {},
                                                       .infer = &infer_nothing});
}

// -- Where this rank stands ----------------------------------------------------------------------

struct Standing {
  std::string what;
  std::int64_t process_set = 0;
};

void* create_standing(KernelConstruction* node) {
  auto standing = std::make_unique<Standing>();
  const Result<std::string> what = read_text(node, "what");
  const Result<std::int64_t> process_set = read_integer(node, "process_set_id");
  if (!what.ok() || !process_set.ok()) {
    fail_construction(node, what.ok() ? process_set.status() : what.status());
    return nullptr;
  }
  standing->what = *what;
  standing->process_set = *process_set;
  return standing.release();
}

void delete_standing(void* kernel) {
  delete static_cast<Standing*>(kernel);
}

Result<std::int64_t> look_up(const World& world, const Standing& standing) {
  const Topology& topology = world.topology();
  if (standing.what == "rank") {
    return topology.rank;
  }
  if (standing.what == "local_rank") {
    return topology.local_rank;
  }
  if (standing.what == "local_size") {
    return topology.local_size;
  }
  for (const ProcessSetInfo& set : world.process_sets()) {
    if (set.id != standing.process_set) {
      continue;
    }
    if (standing.what == "size") {
      return static_cast<std::int64_t>(set.ranks.size());
    }
    for (const std::int32_t member : set.ranks) {
      if (member == topology.rank) {
        return 1;
      }
    }
    return 0;
  }
  return make_error(ErrorCode::kInvalidArgument,
                    "Process set provided does not exist, or has not been registered.");
}

// NOLINTNEXTLINE(misc-const-correctness): the type is TensorFlow's.
void compute_standing(void* kernel, KernelContext* context) {
  const Standing& standing = *static_cast<const Standing*>(kernel);
  Result<std::int64_t> value = not_initialized();
  use_current_world([&](World& world) { value = look_up(world, standing); });
  const Status status = value.ok() ? write_int32(context, 0, {}, {*value}) : value.status();
  if (!status.ok()) {
    fail(context, status);
  }
}

Status register_standing() {
  const OpDefinition definition{
      .name = "LightccStanding",
      .attributes = {"what: {'rank', 'size', 'local_rank', 'local_size', 'included'}",
                     "process_set_id: int = 0"},
      .inputs = {},
      .outputs = {"value: int32"},
      .infer = &infer_scalar};
  LIGHTCC_RETURN_IF_ERROR(register_definition(definition));
  return register_kernels(definition, [&](const char* device) {
    return api().new_kernel(
        definition.name, device, &create_standing, &compute_standing, &delete_standing);
  });
}

Status register_all() {
  LIGHTCC_RETURN_IF_ERROR(load_api());
  LIGHTCC_RETURN_IF_ERROR(register_collectives());
  return register_standing();
}

// When the library is loaded: TensorFlow's loader asks what was registered meanwhile.
const Status& registered() {
  static const Status kStatus = register_all();
  return kStatus;
}

[[gnu::constructor]] void register_at_load() {
  static_cast<void>(registered());
}

}  // namespace
}  // namespace lightcc::tf

/// Why the operations could not be registered; an empty text: they are.
extern "C" LIGHTCC_EXPORT const char* lightcc_tf_problem() {
  return lightcc::tf::registered().message().c_str();
}

/// Whether TensorFlow calls back as kernels need it. `run_done` stands in for TensorFlow's
/// function; null: its own.
extern "C" LIGHTCC_EXPORT bool lightcc_tf_calls_back(void (*run_done)(lightcc::tf::AsyncDone*)) {
  return lightcc::tf::calls_back(run_done == nullptr ? lightcc::tf::api().run_done : run_done);
}
