/* Runs attention's kernels for tensor cores on the CPU and compares them with f64.
 *
 *   emulator BATCH TOKENS HEADS KV_HEADS ORDER LATE [GROWTH]
 *
 * README.md explains the arguments. Built with -DDIM=head_dim beside the sources that sources.py cuts. Ends with 1 if
 * an error is beyond its limit, or if a kernel did not run. */
#include "shim.h"
#include <functional>

static const double LIMIT = 2e-2, LIMIT_LSE = 1e-5;
static const int THREADS = 128;
/* More rounds than this through all fibers mean that they wait for one another for ever. */
static const long ROUNDS = 10000000;

std::vector<Fiber> fibers;
int current;
uint3 blockIdx, blockDim, gridDim;
Meeting block_meeting, warp_meetings[32];
Shown shown[1024];
bool late;
std::vector<std::vector<Copy>> pending;
Span shared_span;
std::vector<Span> global_spans;
std::vector<std::pair<void *, cuda::State>> cuda::states;
/* As much as an H100 gives to one block. */
alignas(1024) unsigned char dynamic_shared_mem[232448];

namespace forward {
#include "forward.inc"
}
namespace queries {
#include "queries.inc"
}
namespace keys {
#include "keys.inc"
}

static ucontext_t scheduler;
static std::function<void()> kernel;
void pass() { swapcontext(&fibers[current].context, &scheduler); }
static void run_fiber() {
    kernel();
    fibers[current].done = true;
    pass();
}

static void run_block(int order) {
    memset(dynamic_shared_mem, 0xff, sizeof dynamic_shared_mem);
    cuda::states.clear();
    block_meeting = Meeting();
    for (Meeting &meeting : warp_meetings) meeting = Meeting();
    for (int i = 0; i < THREADS; i++) {
        Fiber &fiber = fibers[i];
        fiber.index = {(unsigned)i, 0, 0};
        fiber.done = false;
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.data();
        fiber.context.uc_stack.ss_size = fiber.stack.size();
        fiber.context.uc_link = &scheduler;
        makecontext(&fiber.context, run_fiber, 0);
    }
    int left = THREADS;
    for (long round = 0; left > 0; round++) {
        if (round > ROUNDS) wrong("the threads wait for one another for ever");
        for (int i = 0; i < THREADS; i++) {
            current = order == 0 ? i : order == 1 ? THREADS - 1 - i : (i * 77 + round * 13) % THREADS;
            if (fibers[current].done) continue;
            swapcontext(&scheduler, &fibers[current].context);
            if (fibers[current].done) left--;
        }
    }
}

static void launch(uint3 grid, int order, std::function<void()> body) {
    kernel = body;
    gridDim = grid;
    blockDim = {THREADS, 1, 1};
    shared_span = {(char *)dynamic_shared_mem, (char *)dynamic_shared_mem + sizeof dynamic_shared_mem};
    fibers.resize(THREADS);
    pending.assign(THREADS, {});
    for (Fiber &fiber : fibers) fiber.stack.resize(1 << 18);
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                blockIdx = {x, y, z};
                run_block(order);
            }
}

struct Shape {
    int batch, tokens, heads, kv_heads;
    int slots() const { return heads + 2 * kv_heads; }
    /* Where a head's row begins: in qkv, where keys and values follow the queries; in out; in lse. */
    size_t qkv(int b, int t, int slot) const { return ((size_t)(b * tokens + t) * slots() + slot) * DIM; }
    size_t out(int b, int t, int h) const { return ((size_t)(b * tokens + t) * heads + h) * DIM; }
    size_t sum(int b, int t, int h) const { return (size_t)(b * heads + h) * tokens + t; }
};

/* A buffer as a device aligns it, whose ends copies must keep. */
template <typename T> struct Buffer {
    size_t len;
    T *data;
    Buffer(size_t len, T fill) : len(len), data((T *)aligned_alloc(256, (len * sizeof(T) + 255) / 256 * 256)) {
        std::fill(data, data + len, fill);
        global_spans.push_back({(char *)data, (char *)(data + len)});
    }
    T &operator[](size_t i) { return data[i]; }
};

struct Right {
    std::vector<double> out, lse, dsum, dqkv;
};

static double dot(const Bf16 *a, const Bf16 *b) {
    double sum = 0;
    for (int d = 0; d < DIM; d++) sum += (double)(float)a[d] * (float)b[d];
    return sum;
}

/* One query's results, and its part of the gradients. */
static void add_query(Shape s, const Bf16 *qkv, const Bf16 *dout, int b, int h, int t, Right &right) {
    int kv = s.heads + h / (s.heads / s.kv_heads);
    size_t query = s.qkv(b, t, h), out = s.out(b, t, h);
    std::vector<double> weights(t + 1), grads(t + 1);
    double highest = -1e300, total = 0, dsum = 0;
    for (int j = 0; j <= t; j++) {
        weights[j] = dot(qkv + query, qkv + s.qkv(b, j, kv)) / sqrt(DIM);
        highest = max(highest, weights[j]);
    }
    for (double score : weights) total += exp(score - highest);
    double lse = highest + log(total);
    for (int j = 0; j <= t; j++) {
        size_t value = s.qkv(b, j, kv + s.kv_heads);
        weights[j] = exp(weights[j] - lse);
        grads[j] = dot(dout + out, qkv + value);
        dsum += weights[j] * grads[j];
        for (int d = 0; d < DIM; d++) {
            right.out[out + d] += weights[j] * (float)qkv[value + d];
            right.dqkv[value + d] += weights[j] * (float)dout[out + d];
        }
    }
    right.lse[s.sum(b, t, h)] = lse;
    right.dsum[s.sum(b, t, h)] = dsum;
    for (int j = 0; j <= t; j++) {
        size_t key = s.qkv(b, j, kv);
        double slope = weights[j] * (grads[j] - dsum) / sqrt(DIM);
        for (int d = 0; d < DIM; d++) {
            right.dqkv[query + d] += slope * (float)qkv[key + d];
            right.dqkv[key + d] += slope * (float)qkv[query + d];
        }
    }
}

/* The largest difference over the largest right value, among the elements of the slots from `low` to before `high`. */
template <typename T>
static double error(const char *name, Buffer<T> &got, const std::vector<double> &right, int slots, int low, int high) {
    // The only key of the first query has a gradient of zero, up to rounding.
    double worst = 0, largest = 1e-2;
    for (size_t i = 0; i < got.len; i++) {
        int slot = (int)(i / DIM % slots);
        if (slot < low || slot >= high) continue;
        double difference = fabs((double)(float)got[i] - right[i]);
        worst = max(worst, difference < 1e30 ? difference : 1e30);
        largest = max(largest, fabs(right[i]));
    }
    printf("  %s %.1e", name, worst / largest);
    return worst / largest;
}

template <typename Info> static Info info(Shape s) {
    Info info{};
    info.scalars_float[0] = 1 / sqrtf(DIM);
    info.scalars_uint32[0] = s.tokens;
    info.scalars_uint32[1] = s.heads;
    info.scalars_uint32[2] = s.kv_heads;
    return info;
}

static uint3 grid(Shape s, int heads, int rows) {
    return {(unsigned)heads, (unsigned)s.batch, (unsigned)((s.tokens + rows - 1) / rows)};
}

int main(int argc, char **argv) {
    if (argc < 7) wrong("arguments: BATCH TOKENS HEADS KV_HEADS ORDER LATE [GROWTH]");
    Shape s{atoi(argv[1]), atoi(argv[2]), atoi(argv[3]), atoi(argv[4])};
    int order = atoi(argv[5]);
    late = atoi(argv[6]);
    float growth = argc > 7 ? atof(argv[7]) : 0;
    size_t outs = s.out(s.batch, 0, 0), inputs = s.qkv(s.batch, 0, 0), sums = s.sum(s.batch, 0, 0);
    Buffer<Bf16> qkv(inputs, Bf16(0)), dout(outs, Bf16(0)), out(outs, Bf16(3e38f)), dqkv(inputs, Bf16(3e38f));
    Buffer<float> lse(sums, 3e38f), dsum(sums, 3e38f);
    uint64_t seed = 12345;
    auto noise = [&]() {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        return (float)(seed >> 40) / (1 << 22) - 2;
    };
    for (size_t i = 0; i < inputs; i++) {
        int slot = (int)(i / DIM % s.slots()), token = (int)(i / DIM / s.slots() % s.tokens);
        bool key = slot >= s.heads && slot < s.heads + s.kv_heads;
        qkv[i] = Bf16(noise() * (key ? 1 + growth * token : 1));
    }
    for (size_t i = 0; i < outs; i++) dout[i] = Bf16(noise());
    Right right{std::vector<double>(outs), std::vector<double>(sums), std::vector<double>(sums),
                std::vector<double>(inputs)};
    for (int b = 0; b < s.batch; b++)
        for (int h = 0; h < s.heads; h++)
            for (int t = 0; t < s.tokens; t++) add_query(s, qkv.data, dout.data, b, h, t, right);

    unsigned tally = 0;
    launch(grid(s, s.heads, forward::ROWS), order, [&]() {
        forward::forward_kernel_a_((forward::__nv_bfloat16_8 *)qkv.data, (forward::__nv_bfloat16_2 *)out.data, lse.data,
                                   &tally, info<forward::info_st>(s));
    });
    printf("head_dim %d tokens %d late %d order %d growth %g:", DIM, s.tokens, late, order, growth);
    double worst = error("out", out, right.out, 1, 0, 1), worst_lse = error("lse", lse, right.lse, 1, 0, 1);
    // The backward pass is given right sums, so that its errors are its own.
    std::copy(right.lse.begin(), right.lse.end(), lse.data);
    std::copy(right.dsum.begin(), right.dsum.end(), dsum.data);
    launch(grid(s, s.heads, queries::ROWS), order, [&]() {
        queries::queries_kernel_a_((queries::__nv_bfloat16_8 *)qkv.data, (queries::__nv_bfloat16_8 *)dout.data,
                                   lse.data, dsum.data, (queries::__nv_bfloat16_2 *)dqkv.data, &tally,
                                   info<queries::info_st>(s));
    });
    launch(grid(s, s.kv_heads, keys::ROWS), order, [&]() {
        keys::keys_kernel_a_((keys::__nv_bfloat16_8 *)qkv.data, (keys::__nv_bfloat16_8 *)dout.data, lse.data, dsum.data,
                             (keys::__nv_bfloat16_2 *)dqkv.data, &tally, info<keys::info_st>(s));
    });
    worst = max(worst, error("dq", dqkv, right.dqkv, s.slots(), 0, s.heads));
    worst = max(worst, error("dk", dqkv, right.dqkv, s.slots(), s.heads, s.heads + s.kv_heads));
    worst = max(worst, error("dv", dqkv, right.dqkv, s.slots(), s.heads + s.kv_heads, s.slots()));
    bool good = worst < LIMIT && worst_lse < LIMIT_LSE && tally == 3;
    printf("%s\n", good ? "" : tally == 3 ? "  BEYOND THE LIMIT" : "  A KERNEL DID NOT RUN");
    return !good;
}
