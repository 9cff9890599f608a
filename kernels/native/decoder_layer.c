/* A whole decoder layer: norm, projections, rotary embedding, attention, add, norm, gated MLP, add. Between its parts
 * the threads meet; what one part leaves for the next lies as the next multiplies it. */

#include "attention.h"

typedef struct {
    const bf16 *weight; /* [width] */
    float epsilon;
} Norm;

typedef struct {
    Norm input_norm, mlp_norm;
    Matrix qkv, output, gate_up, down; /* gate_up: sixteen columns of gate, then the same of up, and so on */
    Heads heads;
    int64_t hidden_size, mlp_size;
} Layer;

/* Of a step, the same for all layers with one window. */
typedef struct {
    Plan plan;
    const int64_t *slots;  /* [num_tokens] */
    const bf16 *cos, *sin; /* [num_tokens, head_dim] */
    Wanted wanted;         /* behind the model's last layer */
} Step;

/* Room for what the parts leave each other. Row tiles have whole tiles of rows. */
typedef struct {
    row_element *normed;   /* row tiles of [num_tokens, hidden_size] */
    bf16 *qkv;             /* [num_tokens, num_heads + 2 num_kv_heads, head_dim] */
    row_element *attended; /* row tiles of [num_tokens, num_heads head_dim] */
    row_element *gated;    /* row tiles of [num_tokens, mlp_size] */
    bf16 *kept;            /* [wanted.num_rows, hidden_size] */
    float *parts;
} Room;

/* What the caller's own structures and limits must be. */
const int64_t pagemill_layout[] = {
    sizeof(Plan), sizeof(Heads), sizeof(Cache), sizeof(Matrix), sizeof(Layer), sizeof(Step), sizeof(Room),
    MAX_ROWS,     MAX_DIM,       GROUP,
};

/* Bytes of an element of row tiles. */
const int64_t pagemill_row_element = sizeof(row_element);

/* y = x / sqrt(mean(x**2) + epsilon) * weight as row tiles. */
INLINE void norm_rows(const Norm *norm, const bf16 *x, int64_t num_rows, int64_t width, row_element *row_tiles) {
#pragma omp for schedule(static)
    for (int64_t row = 0; row < num_rows; row++) {
        const bf16 *from = x + row * width;
        __m512 squares = _mm512_setzero_ps();
        for (int64_t i = 0; i < width; i += LANES) {
            const __m512 v = load_bf16(from + i);
            squares = _mm512_fmadd_ps(v, v, squares);
        }
        const float mean = _mm512_reduce_add_ps(squares) / (float)width;
        const __m512 factor = _mm512_set1_ps(1.0f / sqrtf(mean + norm->epsilon));
        for (int64_t i = 0; i < width; i += LANES)
            store_row(in_row_tiles(row_tiles, width, row, i),
                       _mm512_mul_ps(_mm512_mul_ps(load_bf16(from + i), factor), load_bf16(norm->weight + i)));
    }
}

/* One head in place: y[i] = x[i] cos[i] - x[i + half] sin[i], y[i + half] = x[i + half] cos[i + half] + x[i] sin[i + half].
 */
INLINE void rotate(bf16 *x, const bf16 *cos, const bf16 *sin, int64_t half) {
    for (int64_t i = 0; i < half; i += LANES) {
        const __m512 low = load_bf16(x + i), high = load_bf16(x + half + i);
        const __m512 turned_low = _mm512_mul_ps(high, load_bf16(sin + i));
        const __m512 turned_high = _mm512_mul_ps(low, load_bf16(sin + half + i));
        store_bf16(x + i, _mm512_fmsub_ps(low, load_bf16(cos + i), turned_low));
        store_bf16(x + half + i, _mm512_fmadd_ps(high, load_bf16(cos + half + i), turned_high));
    }
}

/* Rotate queries and keys in place, and put the keys and the values into their slots. */
INLINE void rotate_and_store(const Step *step, const Heads *heads, const Cache *cache, bf16 *qkv) {
    const int64_t dim = heads->head_dim, num_rotated = heads->num_heads + heads->num_kv_heads;
#pragma omp for schedule(static)
    for (int64_t token = 0; token < step->plan.num_tokens; token++) {
        bf16 *row = qkv + token * (num_rotated + heads->num_kv_heads) * dim;
        for (int64_t head = 0; head < num_rotated; head++)
            rotate(row + head * dim, step->cos + token * dim, step->sin + token * dim, dim / 2);
        for (int64_t head = 0; head < heads->num_kv_heads; head++) {
            store_key(cache, head, step->slots[token], row + (heads->num_heads + head) * dim, dim);
            store_value(cache, head, step->slots[token], row + (num_rotated + head) * dim, dim);
        }
    }
}

/* Copy the wanted rows of hidden states to `kept`, or back. */
INLINE void keep_rows(const Wanted *wanted, bf16 *hidden, bf16 *kept, int64_t width, const int is_back) {
#pragma omp for schedule(static)
    for (int64_t i = 0; i < wanted->num_rows; i++) {
        bf16 *row = hidden + wanted->rows[i] * width, *own = kept + i * width;
        memcpy(is_back ? row : own, is_back ? own : row, (size_t)width * sizeof(bf16));
    }
}

/* One layer, as far as it is wanted. To be called by all threads of a team that has begun tiles; they leave it together. */
INLINE void run_layer(Team *team, const Layer *layer, const Step *step, const Cache *cache, const Room *room,
                      const Wanted *wanted, bf16 *hidden) {
    const Heads *heads = &layer->heads;
    const int64_t num_tokens = step->plan.num_tokens, width = heads->num_heads * heads->head_dim;
    const int64_t qkv_width = width + 2 * heads->num_kv_heads * heads->head_dim;
    norm_rows(&layer->input_norm, hidden, num_tokens, layer->hidden_size, room->normed);
    multiply_matrix(team, &layer->qkv, AS_BF16, room->normed, num_tokens, room->qkv, qkv_width);
    rotate_and_store(step, heads, cache, room->qkv);
    attend_all(team, &step->plan, heads, cache, wanted, room->qkv, qkv_width, room->parts, room->attended, 1);
    bf16 *const rows = wanted->rows ? room->kept : hidden;
    const int64_t num_rows = wanted->rows ? wanted->num_rows : num_tokens;
    if (wanted->rows)
        keep_rows(wanted, hidden, rows, layer->hidden_size, 0);
    multiply_matrix(team, &layer->output, ADDED, room->attended, num_rows, rows, layer->hidden_size);
    norm_rows(&layer->mlp_norm, rows, num_rows, layer->hidden_size, room->normed);
    multiply_matrix(team, &layer->gate_up, GATED, room->normed, num_rows, room->gated, layer->mlp_size);
    multiply_matrix(team, &layer->down, ADDED, room->gated, num_rows, rows, layer->hidden_size);
    if (wanted->rows)
        keep_rows(wanted, hidden, rows, layer->hidden_size, 1);
}

/* Layers one after the other, with a cache each. hidden: [num_tokens, hidden_size], changed in place. If the last of them
 * `ends` the model, rows that are not wanted are left as the layer before left them. */
void pagemill_decoder_layers(const Layer *layers, const Cache *caches, int64_t num_layers, const Step *step,
                             const Room *room, bf16 *hidden, int64_t ends) {
    const Wanted all = {NULL, NULL, 0};
    ROOM_FOR_SHARES(shares);
#pragma omp parallel
    {
        Team team = join_team(shares);
        const unsigned before = begin_tiles();
        for (int64_t i = 0; i < num_layers; i++) {
            const Wanted *wanted = ends && i == num_layers - 1 ? &step->wanted : &all;
            run_layer(&team, layers + i, step, caches + i, room, wanted, hidden);
        }
        end_tiles(before);
    }
}
