/* A trainer in C, without any library: docs/bridge.md from end to end.
 *
 *     cc -O2 -o trainer trainer.c
 *     starling train --run run.toml -- ./trainer
 *
 * It learns the weights of a linear function of 16 numbers, by gradient descent. Sample n is made from n. When its node
 * is gone it ends, too: the node that comes next starts it again.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define INPUTS 16
#define SAMPLES 4096
#define FRAME_MAX (1 << 20)

struct node {
    int socket;
    char frame[FRAME_MAX + 1]; /* the frame at hand, as text that ends with a zero */
    char *memory;              /* shared with the node; none before `welcome` */
    size_t bytes;
    float *weights;            /* INPUTS weights and a bias, in the memory */
    uint64_t *areas[2];
    long long unit;
};

static void fail(const char *what) {
    fprintf(stderr, "trainer: %s\n", what);
    exit(1);
}

/* The place of a key's value in the frame. A quote inside of text has a backslash before it, so a key is found by its
 * quotes. The keys that are asked for here have different names in all objects of a frame. */
static const char *value(const struct node *node, const char *key) {
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\"", key);
    for (const char *at = node->frame; (at = strstr(at, quoted)) != NULL; at++) {
        const char *after = at + strlen(quoted);
        after += strspn(after, " ");
        if (*after == ':' && (at == node->frame || at[-1] != '\\'))
            return after + 1 + strspn(after + 1, " ");
    }
    return NULL;
}

static double number(const struct node *node, const char *key) {
    const char *at = value(node, key);
    if (at == NULL)
        fail("the node's message lacks a number");
    return strtod(at + (*at == '['), NULL); /* the first of a list */
}

static int is(const struct node *node, const char *key, const char *text) {
    const char *at = value(node, key);
    size_t length = strlen(text);
    return at != NULL && at[0] == '"' && strncmp(at + 1, text, length) == 0 && at[1 + length] == '"';
}

static void say(struct node *node, const char *text) {
    uint32_t length = strlen(text); /* little endian, as all machines are that we know */
    char frame[4 + 4096];
    memcpy(frame, &length, 4);
    memcpy(frame + 4, text, length);
    for (size_t sent = 0; sent < 4 + length;) {
        ssize_t n = send(node->socket, frame + sent, 4 + length - sent, MSG_NOSIGNAL);
        if (n <= 0)
            return; /* the node is gone; the next `hear` says so, or why */
        sent += n;
    }
}

/* Reads so many bytes. A file that comes with them is the memory. */
static void take(struct node *node, char *into, size_t count, int *file) {
    while (count > 0) {
        char control[CMSG_SPACE(sizeof(int))];
        struct iovec part = {into, count};
        struct msghdr message = {NULL, 0, &part, 1, control, sizeof control, 0};
        ssize_t n = recvmsg(node->socket, &message, 0);
        if (n <= 0)
            fail("the node closed the connection: its log says why");
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        if (header != NULL && header->cmsg_type == SCM_RIGHTS)
            memcpy(file, CMSG_DATA(header), sizeof(int));
        into += n;
        count -= n;
    }
}

/* Reads the next frame; the file that came with it, or -1. */
static int hear(struct node *node) {
    uint32_t length;
    int file = -1;
    take(node, (char *)&length, 4, &file);
    if (length > FRAME_MAX)
        fail("the node's frame is too long");
    take(node, node->frame, length, &file);
    node->frame[length] = 0;
    if (value(node, "refused") != NULL) {
        fprintf(stderr, "trainer: the node refused: %s\n", node->frame);
        exit(2);
    }
    return file;
}

static void greet(struct node *node, const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char text[512];
    if (strlen(path) >= sizeof address.sun_path)
        fail("the socket's path is too long");
    strcpy(address.sun_path, path);
    node->socket = socket(AF_UNIX, SOCK_STREAM, 0);
    if (connect(node->socket, (struct sockaddr *)&address, sizeof address) != 0)
        fail("no node listens at STARLING_TRAINER");
    snprintf(text, sizeof text, "{\"hello\": 1, \"program\": \"trainer.c 1\", \"tensors\": 2, \"samples\": %d, "
             "\"evaluates\": true, \"saves\": false}", SAMPLES);
    say(node, text);
    snprintf(text, sizeof text, "{\"tensors\": ["
             "{\"name\": \"weight\", \"shape\": [%d], \"kind\": \"learned\", \"dtype\": \"f32\"}, "
             "{\"name\": \"bias\", \"shape\": [1], \"kind\": \"learned\", \"dtype\": \"f32\"}]}", INPUTS);
    say(node, text);
    int file = hear(node);
    if (file < 0 || number(node, "welcome") != 1 || number(node, "elements") != INPUTS + 1)
        fail("the node's greeting is of another version");
    node->bytes = number(node, "bytes");
    node->unit = number(node, "unit");
    node->memory = mmap(NULL, node->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (node->memory == MAP_FAILED)
        fail("the memory cannot be mapped");
    close(file);
    node->weights = (float *)(node->memory + (size_t)number(node, "parameters"));
    node->areas[0] = (uint64_t *)(node->memory + (size_t)number(node, "areas"));
    node->areas[1] = (uint64_t *)(node->memory + (size_t)strtoull(strchr(value(node, "areas"), ',') + 1, NULL, 10));
}

/* A sample: numbers from -1 to 1 that follow from its own number, and the function's value there. */
static float sample(uint64_t n, float *x) {
    uint64_t state = n * 0x9E3779B97F4A7C15u + 1;
    float y = 0.5f;
    for (int i = 0; i < INPUTS; i++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        x[i] = (float)((int64_t)(state >> 40) - (1 << 23)) / (1 << 23);
        y += x[i] * (float)(i - INPUTS / 2) / INPUTS;
    }
    return y;
}

/* Mean loss over samples; adds the mean gradient if there is a place for it. Without a list they are beyond the data. */
static double loss(const float *w, const uint64_t *list, long long count, float *gradient) {
    double sum = 0;
    for (long long i = 0; i < count; i++) {
        float x[INPUTS], error = w[INPUTS] - sample(list != NULL ? list[i] : (uint64_t)(SAMPLES + i), x);
        for (int j = 0; j < INPUTS; j++)
            error += w[j] * x[j];
        sum += error * error;
        for (int j = 0; gradient != NULL && j <= INPUTS; j++)
            gradient[j] += 2 * error * (j < INPUTS ? x[j] : 1) / count;
    }
    return sum / count;
}

int main(void) {
    static struct node node;
    char text[256];
    const uint64_t *next = NULL; /* the samples of the next step */
    const char *path = getenv("STARLING_TRAINER");
    if (path == NULL)
        fail("start it with `starling train --run run.toml -- ./trainer`");
    greet(&node, path);
    for (;;) {
        hear(&node);
        long long id = number(&node, "id");
        snprintf(text, sizeof text, "{\"answer\": %lld}", id);
        /* The weights lie in the memory, so `load` and `read` need nothing; first weights of 0 are there already. */
        if (is(&node, "ask", "lease") && strncmp(value(&node, "likely"), "false", 5) == 0) {
            next = node.areas[number(&node, "area") == 1];
        } else if (is(&node, "ask", "step")) {
            float gradient[INPUTS + 1] = {0};
            double before = loss(node.weights, next, node.unit, gradient);
            for (int j = 0; j <= INPUTS; j++)
                node.weights[j] -= (float)number(&node, "lr") * gradient[j];
            next += node.unit;
            snprintf(text, sizeof text, "{\"answer\": %lld, \"loss\": %.9g, \"samples\": %lld, \"weight\": %lld}",
                     id, before, node.unit, node.unit);
        } else if (is(&node, "ask", "evaluate")) {
            snprintf(text, sizeof text, "{\"answer\": %lld, \"loss\": %.9g, \"weight\": 512}", id,
                     loss(node.weights, NULL, 512, NULL));
        }
        say(&node, text);
        if (is(&node, "ask", "end")) {
            fprintf(stderr, "trainer: the node ended: %s\n", node.frame);
            return 0;
        }
    }
}
