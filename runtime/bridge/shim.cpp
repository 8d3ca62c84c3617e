// The one piece of C++: a backend of ExecuTorch's own runtime that hands every call to Python.
//
// Python sets four functions (wgpu_bridge_register) and takes them back before the interpreter
// ends (wgpu_bridge_close); calls without them are refused. Arguments cross in one flat table of
// 64-bit integers that Python owns, so that a call costs one read of it there.
//
// A row of the table, one for each argument (inputs, then outputs):
//   tag, dtype, rank, value, sizes[R], strides[R]
// tag: kNone ... kOther below. value: the int or bool, or the address of a tensor's data. R is
// the rank that the program expects (0 for ints); sizes and strides (in elements) are filled in
// only where rank equals it. The address of the list of arguments comes with each call, for
// wgpu_bridge_resize.

#include <cstdint>
#include <cstring>
#include <iostream>
#include <map>
#include <string>
#include <utility>

#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/core/error.h>
#include <executorch/runtime/core/evalue.h>
#include <executorch/runtime/core/exec_aten/util/tensor_util.h>

namespace {

namespace et = executorch::runtime;

enum Tag : int64_t { kNone, kInt, kBool, kDouble, kTensor, kOther };
constexpr int64_t kHeader = 4;

// One delegate of one loaded method. Python fills in everything but the id.
struct Instance {
  uint64_t id;
  uint64_t inputs;
  uint64_t outputs;
  const int64_t* ranks; // one an argument, -1 for an int
  int64_t* table;
};

// What init may be asked for while it runs: the constants of the program.
struct InitData {
  const et::NamedDataMap* map;
  std::map<std::string, et::FreeableBuffer> held;
};

struct Callbacks {
  uint32_t (*init)(Instance*, const char* method, const void* blob, uint64_t bytes, InitData*,
                   const void* identity);
  uint32_t (*execute)(uint64_t id, et::EValue** arguments);
  void (*destroy)(uint64_t id);
};

Callbacks callbacks = {nullptr, nullptr, nullptr};
uint64_t next_id = 1;

// ExecuTorch's Python functions point std::cout and std::cerr to buffers on their own stack while
// they run (turns.py says what comes of that). A delegate runs with the streams as they were before
// the call.
struct Streams {
  std::streambuf* out;
  std::streambuf* err;

  static Streams now() {
    return {std::cout.rdbuf(), std::cerr.rdbuf()};
  }
  void set() const {
    std::cout.rdbuf(out);
    std::cerr.rdbuf(err);
  }
};
thread_local Streams before = {nullptr, nullptr};

// What a callback answers, or 0 where Ctrl-C ended it before it could: that it is done or else an
// error, and that this thread is to have its streams back.
constexpr uint32_t kDone = 1u << 16;
constexpr uint32_t kResumed = 1u << 17;

// What a callback may change: it lets other calls in, and may make some itself.
struct Kept {
  const Streams streams = Streams::now();
  const Streams outside = before;

  et::Error after(uint32_t answer) const {
    before = outside;
    if (answer & kResumed) streams.set();
    if (answer & kDone) return et::Error::Ok;
    const auto error = static_cast<et::Error>(answer & (kDone - 1));
    return error == et::Error::Ok ? et::Error::Internal : error;
  }
};

int64_t integer_of(const executorch::aten::Tensor& tensor, bool* ok) {
  using executorch::aten::ScalarType;
  *ok = tensor.numel() == 1 && tensor.const_data_ptr() != nullptr;
  if (!*ok) return 0;
  switch (tensor.scalar_type()) {
    case ScalarType::Long: return *tensor.const_data_ptr<int64_t>();
    case ScalarType::Int: return *tensor.const_data_ptr<int32_t>();
    case ScalarType::Short: return *tensor.const_data_ptr<int16_t>();
    case ScalarType::Char: return *tensor.const_data_ptr<int8_t>();
    case ScalarType::Byte: return *tensor.const_data_ptr<uint8_t>();
    default: *ok = false; return 0;
  }
}

void write_row(int64_t* row, const et::EValue& value, int64_t expected) {
  row[0] = kOther;
  row[1] = row[2] = row[3] = 0;
  if (value.isTensor()) {
    const auto& tensor = value.toTensor();
    bool one = false;
    const int64_t number = expected < 0 ? integer_of(tensor, &one) : 0;
    if (one) {
      row[0] = kInt;
      row[3] = number;
      return;
    }
    row[0] = kTensor;
    row[1] = static_cast<int64_t>(tensor.scalar_type());
    row[2] = tensor.dim();
    row[3] = reinterpret_cast<int64_t>(tensor.const_data_ptr());
    if (row[2] == expected) {
      for (int64_t d = 0; d < expected; ++d) {
        row[kHeader + d] = tensor.sizes()[d];
        row[kHeader + expected + d] = tensor.strides()[d];
      }
    }
  } else if (value.isInt()) {
    row[0] = kInt;
    row[3] = value.toInt();
  } else if (value.isBool()) {
    row[0] = kBool;
    row[3] = value.toBool() ? 1 : 0;
  } else if (value.isDouble()) {
    row[0] = kDouble;
  } else if (value.isNone()) {
    row[0] = kNone;
  }
}

int64_t row_size(int64_t rank) {
  return kHeader + 2 * (rank > 0 ? rank : 0);
}

class WgpuBackend final : public et::BackendInterface {
 public:
  bool is_available() const override {
    return callbacks.init != nullptr;
  }

  et::Result<et::DelegateHandle*> init(
      et::BackendInitContext& context,
      et::FreeableBuffer* processed,
      et::ArrayRef<et::CompileSpec>) const override {
    if (callbacks.init == nullptr) return et::Error::InvalidState;
    auto* instance = new Instance{__atomic_fetch_add(&next_id, 1, __ATOMIC_RELAXED), 0, 0,
                                  nullptr, nullptr};
    InitData data{context.get_named_data_map(), {}};
    const char* name = context.get_method_name();
    const Kept kept;
    const et::Error error = kept.after(callbacks.init(
        instance, name == nullptr ? "" : name, processed->data(), processed->size(), &data,
        data.map));
    if (error != et::Error::Ok) {
      delete instance;
      return error;
    }
    processed->Free(); // Python has read all of it
    return instance;
  }

  et::Error execute(
      et::BackendExecutionContext&,
      et::DelegateHandle* handle,
      et::Span<et::EValue*> arguments) const override {
    if (callbacks.execute == nullptr) return et::Error::InvalidState;
    auto* instance = static_cast<Instance*>(handle);
    const uint64_t count = instance->inputs + instance->outputs;
    if (arguments.size() != count) return et::Error::InvalidProgram;
    int64_t* row = instance->table;
    for (uint64_t k = 0; k < count; ++k) {
      write_row(row, *arguments[k], instance->ranks[k]);
      row += row_size(instance->ranks[k]);
    }
    const Kept kept;
    const et::Error error = kept.after(callbacks.execute(instance->id, arguments.data()));
    if (error != et::Error::Ok) return error;
    row = instance->table;
    for (uint64_t k = 0; k < count; ++k) {
      if (k >= instance->inputs && instance->ranks[k] < 0) {
        *arguments[k] = et::EValue(row[3]);
      }
      row += row_size(instance->ranks[k]);
    }
    return error;
  }

  void destroy(et::DelegateHandle* handle) const override {
    auto* instance = static_cast<Instance*>(handle);
    if (callbacks.destroy != nullptr) callbacks.destroy(instance->id);
    delete instance;
  }
};

} // namespace

extern "C" {

// The executorch that this was compiled for.
const char* wgpu_bridge_built_for() {
  return WGPU_BRIDGE_BUILT_FOR;
}

// Called before a function of ExecuTorch's binding, by the thread whose turn it is.
void wgpu_bridge_begin() {
  before = Streams::now();
}

// Called by the same thread within a callback: the streams are as they were before the call.
void wgpu_bridge_set_aside() {
  if (before.out != nullptr) before.set();
}

// Sets the functions and, the first time, registers the backend. Returns an et::Error.
uint32_t wgpu_bridge_register(const char* name, Callbacks functions) {
  static bool registered = false;
  callbacks = functions;
  if (registered) return 0;
  // Never deleted: methods may outlive everything that could delete it.
  static std::string* kept = new std::string(name);
  const auto error = et::register_backend({kept->c_str(), new WgpuBackend()});
  registered = error == et::Error::Ok;
  if (!registered) callbacks = {nullptr, nullptr, nullptr};
  return static_cast<uint32_t>(error);
}

// Takes the functions back: from here on calls are refused and nothing is called.
void wgpu_bridge_close() {
  callbacks = {nullptr, nullptr, nullptr};
}

// The bytes of one constant, in place where the loader maps its file. They stay until
// wgpu_bridge_release or the end of init.
uint32_t wgpu_bridge_data(InitData* data, const char* key, const void** address, uint64_t* bytes) {
  if (data->map == nullptr) return static_cast<uint32_t>(et::Error::NotFound);
  auto found = data->map->get_data(key);
  if (!found.ok()) return static_cast<uint32_t>(found.error());
  data->held.erase(key);
  const auto place = data->held.emplace(key, std::move(found.get())).first;
  *address = place->second.data();
  *bytes = place->second.size();
  return 0;
}

void wgpu_bridge_release(InitData* data, const char* key) {
  data->held.erase(key);
}

// Resizes the tensor outputs to the sizes in their rows, and brings the rows up to date. Returns
// 0, or 1 + the position of the output whose memory is too small.
uint64_t wgpu_bridge_resize(Instance* instance, et::EValue** arguments) {
  int64_t* row = instance->table;
  executorch::aten::SizesType sizes[et::kTensorDimensionLimit];
  for (uint64_t k = 0; k < instance->inputs + instance->outputs; ++k) {
    const int64_t rank = instance->ranks[k];
    if (k >= instance->inputs && rank >= 0) {
      if (!arguments[k]->isTensor()) return 1 + k - instance->inputs;
      for (int64_t d = 0; d < rank; ++d) {
        sizes[d] = static_cast<executorch::aten::SizesType>(row[kHeader + d]);
      }
      const auto error = et::resize_tensor(
          arguments[k]->toTensor(), {sizes, static_cast<size_t>(rank)});
      if (error != et::Error::Ok) return 1 + k - instance->inputs;
      write_row(row, *arguments[k], rank);
    }
    row += row_size(rank);
  }
  return 0;
}

} // extern "C"
