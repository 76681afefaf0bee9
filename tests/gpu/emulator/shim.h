/* CUDA's words for C++ on the CPU, as far as attention's kernels for tensor cores use them. Each thread of a block is a
 * fiber; fibers change only where threads wait for one another. */
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ucontext.h>
#include <utility>
#include <vector>

using std::max;
using std::min;
#define __device__
#define __global__
#define __align__(n) alignas(n)
#define __grid_constant__
#define __launch_bounds__(n)

[[noreturn]] static inline void wrong(const char *why) {
    printf("WRONG: %s\n", why);
    exit(1);
}

struct uint3 {
    unsigned x, y, z;
};
static inline uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }

/* Rounds to nearest, ties to even. */
struct Bf16 {
    uint16_t bits;
    Bf16() {}
    explicit Bf16(float value) {
        uint32_t u;
        memcpy(&u, &value, 4);
        bits = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    }
    operator float() const {
        uint32_t u = uint32_t(bits) << 16;
        float value;
        memcpy(&value, &u, 4);
        return value;
    }
};
typedef Bf16 __nv_bfloat16;
struct alignas(4) __nv_bfloat162 {
    Bf16 x, y;
};
static inline Bf16 __float2bfloat16(float value) { return Bf16(value); }
static inline float __bfloat162float(Bf16 value) { return value; }
static inline float power(float a, float b) { return powf(a, b); }
#define __powf power

/* Threads. */
static const unsigned warpSize = 32;
struct Fiber {
    ucontext_t context;
    std::vector<char> stack;
    uint3 index;
    bool done;
};
extern std::vector<Fiber> fibers;
extern int current;
extern uint3 blockIdx, blockDim, gridDim;
#define threadIdx (fibers[current].index)
/* Lets the other fibers run. */
void pass();

/* Threads that wait until all of them are there. */
struct Meeting {
    int count = 0;
    unsigned held = 0;
};
extern Meeting block_meeting, warp_meetings[32];
static inline void meet(Meeting &meeting, int members) {
    unsigned before = meeting.held;
    if (++meeting.count == members) {
        meeting.count = 0;
        meeting.held++;
    } else {
        while (meeting.held == before) pass();
    }
}
static inline void __syncthreads() { meet(block_meeting, (int)blockDim.x); }
static inline void meet_warp() { meet(warp_meetings[current / 32], 32); }

/* Values that threads of a warp show one another: written, met, read, met again. */
struct Shown {
    const void *row;
    uint32_t words[6];
    float value;
    bool vote;
};
extern Shown shown[1024];
static inline int warp_start() { return current & ~31; }
static inline int lane() { return current & 31; }
static inline bool __any_sync(unsigned, bool vote) {
    shown[current].vote = vote;
    meet_warp();
    bool any = false;
    for (int i = 0; i < 32; i++) any = any || shown[warp_start() + i].vote;
    meet_warp();
    return any;
}
static inline float __shfl_xor_sync(unsigned, float value, unsigned mask) {
    shown[current].value = value;
    meet_warp();
    float other = shown[warp_start() | (lane() ^ mask)].value;
    meet_warp();
    return other;
}
static inline uint32_t atomicAdd(unsigned *counter, unsigned more) {
    unsigned before = *counter;
    *counter += more;
    return before;
}

/* Asynchronous copies. Late ones wait, first with their thread, then with the barrier that the thread names. */
struct Copy {
    const void *from;
    void *to;
    int bytes, room;
};
struct Span {
    const char *start, *end;
    bool holds(const void *from, int bytes) const {
        return (const char *)from >= start && (const char *)from + bytes <= end;
    }
};
extern bool late;
extern std::vector<std::vector<Copy>> pending;
extern Span shared_span;
extern std::vector<Span> global_spans;
static inline void run_copy(const Copy &copy) {
    memset(copy.to, 0, copy.room);
    memcpy(copy.to, copy.from, copy.bytes);
}
template <size_t N> static inline void __cp_async_shared_global(void const *from, void *to, int32_t const &bytes) {
    if (bytes != 0 && bytes != (int)N) wrong("a copy is neither whole nor empty");
    if (!shared_span.holds(to, N)) wrong("a copy ends outside shared memory");
    if ((uintptr_t)to % N || (uintptr_t)from % N) wrong("a copy is not aligned");
    bool inside = bytes == 0;
    for (const Span &span : global_spans) inside = inside || span.holds(from, N);
    if (!inside) wrong("a copy reads outside its buffer");
    Copy copy{from, to, bytes, (int)N};
    if (late) pending[current].push_back(copy);
    else run_copy(copy);
}

/* Barriers of shared memory, by their address. */
namespace cuda {
enum thread_scope { thread_scope_block };
struct State {
    unsigned expected = 0, arrived = 0, phase = 0;
    std::vector<Copy> copies;
};
extern std::vector<std::pair<void *, State>> states;
static inline State &state(void *barrier) {
    for (auto &entry : states)
        if (entry.first == barrier) return entry.second;
    states.push_back({barrier, {}});
    return states.back().second;
}
template <thread_scope S> struct barrier {
    uint64_t word;
    typedef int arrival_token;
    int arrive() {
        State &own = state(this);
        if (!own.expected) wrong("a thread arrives at a barrier before it is set up");
        if (++own.arrived == own.expected) {
            for (const Copy &copy : own.copies) run_copy(copy);
            own.copies.clear();
            own.arrived = 0;
            own.phase++;
        }
        return 0;
    }
    void wait_parity(unsigned parity) {
        while ((state(this).phase & 1) == parity) pass();
    }
};
} // namespace cuda
typedef cuda::barrier<cuda::thread_scope_block> BlockBarrier;
static inline void init(BlockBarrier *barrier, unsigned expected) {
    cuda::state(barrier) = cuda::State();
    cuda::state(barrier).expected = expected;
}
/* Hands the thread's copies to the barrier. As in cubecl's wrapper, the thread's own arrival is apart. */
static inline void __cp_async_arrive(BlockBarrier &barrier) {
    auto &copies = cuda::state(&barrier).copies;
    copies.insert(copies.end(), pending[current].begin(), pending[current].end());
    pending[current].clear();
}
namespace cooperative_groups {
struct thread_block {};
static inline thread_block this_thread_block() { return {}; }
} // namespace cooperative_groups

/* Four matrices of 8 by 8: lanes 8 i to 8 i + 7 name the rows of matrix i. */
static inline void load_matrices(uint32_t *out, const void *row, bool transposed) {
    if ((uintptr_t)row % 16 || !shared_span.holds(row, 16))
        wrong("ldmatrix reads outside shared memory, or not aligned");
    shown[current].row = row;
    meet_warp();
    for (int i = 0; i < 4; i++) {
        uint16_t pair[2];
        for (int k = 0; k < 2; k++) {
            int r = lane() / 4, c = 2 * (lane() % 4) + k;
            if (transposed) std::swap(r, c);
            pair[k] = ((const uint16_t *)shown[warp_start() + 8 * i + r].row)[c];
        }
        memcpy(&out[i], pair, 4);
    }
    meet_warp();
}
static inline void __ldmatrix_m8n8___nv_bfloat16_4x(
    unsigned &a, unsigned &b, unsigned &c, unsigned &d, const void *row) {
    uint32_t out[4];
    load_matrices(out, row, false);
    a = out[0], b = out[1], c = out[2], d = out[3];
}
static inline void __ldmatrix_m8n8___nv_bfloat16_4x_trans(
    unsigned &a, unsigned &b, unsigned &c, unsigned &d, const void *row) {
    uint32_t out[4];
    load_matrices(out, row, true);
    a = out[0], b = out[1], c = out[2], d = out[3];
}

static inline float half_of(uint32_t word, int k) {
    uint32_t u = k ? word & 0xffff0000u : word << 16;
    float value;
    memcpy(&value, &u, 4);
    return value;
}
/* A (row, k) lies with lane 4 (row % 8) + k % 8 / 2, register (row >= 8) + 2 (k >= 8); B (k, col) with lane
 * 4 col + k % 8 / 2, register k >= 8. */
static inline void __mma_m16n8k16___nv_bfloat16___nv_bfloat16_float(
    unsigned const &a0, unsigned const &a1, unsigned const &a2, unsigned const &a3, unsigned const &b0,
    unsigned const &b1, float const &c0, float const &c1, float const &c2, float const &c3, float &d0, float &d1,
    float &d2, float &d3) {
    const uint32_t words[6] = {a0, a1, a2, a3, b0, b1};
    memcpy(shown[current].words, words, sizeof words);
    meet_warp();
    float sums[4] = {c0, c1, c2, c3};
    for (int i = 0; i < 4; i++) {
        int row = lane() / 4 + (i >= 2 ? 8 : 0), col = 2 * (lane() % 4) + i % 2;
        for (int k = 0; k < 16; k++) {
            const Shown &left = shown[warp_start() + 4 * (row % 8) + k % 8 / 2];
            const Shown &right = shown[warp_start() + 4 * col + k % 8 / 2];
            float a = half_of(left.words[(row >= 8) + 2 * (k >= 8)], k & 1);
            sums[i] += a * half_of(right.words[4 + (k >= 8)], k & 1);
        }
    }
    meet_warp();
    d0 = sums[0], d1 = sums[1], d2 = sums[2], d3 = sums[3];
}
