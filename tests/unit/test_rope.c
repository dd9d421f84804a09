/* Rotary frequencies of every scaling against transformers 5.24's functions, in every spelling of the config. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "model/family.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct golden {
    const char *name;
    int dims;
    const char *parameters;
    float scale;
    int pairs;
    float inv_freq[32];
} goldens[] = {
    {"default",
     64,
     "{\"rope_type\": \"default\", \"rope_theta\": 100000.0, \"partial_rotary_factor\": 0.25}",
     1.0f,
     8,
     {1, 0.237137362, 0.0562341288, 0.0133352149, 0.00316227786, 0.000749894185, 0.00017782794, 4.21696532e-05}},
    {"linear",
     32,
     "{\"rope_type\": \"linear\", \"rope_theta\": 10000.0, \"factor\": 4.0}",
     1.0f,
     16,
     {0.25, 0.140585333, 0.079056941, 0.0444569848, 0.0250000004, 0.0140585322, 0.00790569466, 0.00444569858,
      0.00249999994, 0.00140585331, 0.000790569466, 0.000444569858, 0.000250000012, 0.000140585325, 7.90569466e-05,
      4.44569851e-05}},
    {"llama3",
     64,
     "{\"rope_type\": \"llama3\", \"rope_theta\": 500000.0, \"factor\": 8.0, \"low_freq_factor\": 1.0, "
     "\"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 8192}",
     1.0f,
     32,
     {1,
      0.663601279,
      0.440366626,
      0.292227834,
      0.193922758,
      0.128687382,
      0.0853971019,
      0.0566696189,
      0.0376060307,
      0.0249554086,
      0.0165604409,
      0.0109895291,
      0.00729266508,
      0.00483942125,
      0.00321144611,
      0.00137189368,
      0.000524846022,
      0.000178507791,
      7.78465546e-05,
      5.16590699e-05,
      3.42810235e-05,
      2.2748929e-05,
      1.50962178e-05,
      1.00178686e-05,
      6.64786967e-06,
      4.41153452e-06,
      2.92749974e-06,
      1.94269251e-06,
      1.28917316e-06,
      8.55496921e-07,
      5.6770881e-07,
      3.7673226e-07}},
    {"yarn",
     64,
     "{\"rope_type\": \"yarn\", \"rope_theta\": 1000000.0, \"factor\": 4.0, \"original_max_position_embeddings\": "
     "32768}",
     1.13862944f,
     32,
     {1,
      0.649381638,
      0.421696514,
      0.273841977,
      0.177827939,
      0.115478203,
      0.0749894157,
      0.0486967526,
      0.0316227786,
      0.0205352511,
      0.0133352149,
      0.00865964312,
      0.00515479548,
      0.0030431177,
      0.00177853031,
      0.00102661771,
      0.000583333371,
      0.000324690831,
      0.000175706868,
      9.12806499e-05,
      4.44569851e-05,
      2.88695483e-05,
      1.87473561e-05,
      1.21741887e-05,
      7.90569356e-06,
      5.13381246e-06,
      3.33380353e-06,
      2.16491094e-06,
      1.40585337e-06,
      9.1293532e-07,
      5.92843435e-07,
      3.84981632e-07}},
    {"yarn all",
     32,
     "{\"rope_type\": \"yarn\", \"rope_theta\": 10000.0, \"factor\": 40.0, \"original_max_position_embeddings\": 4096, "
     "\"beta_fast\": 16.0, \"beta_slow\": 2.0, \"truncate\": false, \"attention_factor\": 1.25}",
     1.25f,
     16,
     {1, 0.562341332, 0.316227764, 0.177827939, 0.100000001, 0.0562341288, 0.0316227786, 0.0150961196, 0.00579010462,
      0.00173821871, 0.000123952457, 4.44569851e-05, 2.49999994e-05, 1.40585325e-05, 7.90569447e-06, 4.44569832e-06}},
    {"yarn mscale",
     32,
     "{\"rope_type\": \"yarn\", \"rope_theta\": 10000.0, \"factor\": 40.0, \"original_max_position_embeddings\": 4096, "
     "\"mscale\": 1.0, \"mscale_all_dim\": 0.707}",
     1.0857264f,
     16,
     {1, 0.562341332, 0.316227764, 0.177827939, 0.100000001, 0.0562341288, 0.0272181761, 0.0128290169, 0.00582142826,
      0.00249036867, 0.000959977158, 0.000292145909, 2.49999994e-05, 1.40585325e-05, 7.90569447e-06, 4.44569832e-06}},
};

/* Where the fields may be written. */
typedef enum spelling { PARAMETERS, TEXT_PARAMETERS, SCALING, OLD_TYPE, SPELLINGS } spelling;

static json_t *spell(const char *parameters, spelling how)
{
    json_t *root = json_object(), *p = json_loads(parameters, 0, NULL);
    assert_non_null(p);
    if (how == TEXT_PARAMETERS) {
        json_object_set_new(root, "text_config", json_pack("{s:o}", "rope_parameters", p));
    } else if (how == PARAMETERS) {
        json_object_set_new(root, "rope_parameters", p);
    } else { /* theta and the partial factor at the top, the rest in rope_scaling */
        static const char *const top[] = {"rope_theta", "partial_rotary_factor"};
        for (size_t i = 0; i < 2; i++)
            if (json_object_get(p, top[i])) {
                json_object_set(root, top[i], json_object_get(p, top[i]));
                json_object_del(p, top[i]);
            }
        if (how == OLD_TYPE) {
            json_object_set(p, "type", json_object_get(p, "rope_type"));
            json_object_del(p, "rope_type");
        }
        json_object_set_new(root, "rope_scaling", p);
    }
    return root;
}

static pm_config wrap(json_t *root)
{
    json_t *text = json_object_get(root, "text_config");
    return (pm_config){"config.json", root, text ? text : root};
}

static void test_goldens(void **state)
{
    (void)state;
    for (size_t i = 0; i < PM_COUNT(goldens); i++)
        for (int how = 0; how < SPELLINGS; how++) {
            const struct golden *g = &goldens[i];
            pm_config config = wrap(spell(g->parameters, (spelling)how));
            pm_arena arena = {0};
            pm_rope rope;
            pm_error err;
            if (pm_rope_read(&config, g->dims, 1.0, 0, &arena, &rope, &err) != PM_OK)
                fail_msg("%s, spelling %d: %s", g->name, how, err.message);
            if (rope.pairs != g->pairs || fabsf(rope.scale - g->scale) > 1e-6f * g->scale)
                fail_msg("%s: %d pairs scaled by %g, expected %d by %g", g->name, rope.pairs, rope.scale, g->pairs,
                         g->scale);
            for (int k = 0; k < g->pairs; k++)
                if (fabsf(rope.inv_freq[k] - g->inv_freq[k]) > 1e-6f * g->inv_freq[k])
                    fail_msg("%s, spelling %d: frequency %d is %.9g, expected %.9g", g->name, how, k, rope.inv_freq[k],
                             g->inv_freq[k]);
            pm_arena_free(&arena);
            json_decref(config.root);
        }
}

/* What a config leaves out: theta is the caller's or 10000, the part of a head that turns is the caller's; what it says
 * wins. */
static void test_left_out(void **state)
{
    (void)state;
    static const struct {
        const char *config;
        double partial, base;
        int pairs;
        double theta;
    } table[] = {
        {"{}", 1.0, 0, 32, 1e4},
        {"{}", 1.0, 1e6, 32, 1e6},
        {"{\"rope_scaling\": null}", 1.0, 0, 32, 1e4},
        {"{\"rope_parameters\": {\"rope_type\": \"default\"}}", 0.25, 0, 8, 1e4},
        {"{\"rope_parameters\": {\"rope_type\": \"default\"}}", 0.25, 5e5, 8, 5e5},
        {"{\"rope_theta\": 1e6}", 0.25, 0, 8, 1e6},
        {"{\"rope_theta\": 1e4}", 0.25, 1e6, 8, 1e4},
        {"{\"rope_parameters\": {\"rope_theta\": 1e6, \"partial_rotary_factor\": 0.5}}", 0.25, 0, 16, 1e6},
        {"{\"rope_theta\": 1e6, \"partial_rotary_factor\": 1.0}", 0.25, 0, 32, 1e6},
    };
    for (size_t i = 0; i < PM_COUNT(table); i++) {
        pm_config config = wrap(json_loads(table[i].config, 0, NULL));
        pm_arena arena = {0};
        pm_rope rope;
        pm_error err;
        if (pm_rope_read(&config, 64, table[i].partial, table[i].base, &arena, &rope, &err) != PM_OK)
            fail_msg("%s: %s", table[i].config, err.message);
        if (rope.pairs != table[i].pairs)
            fail_msg("%s: %d pairs, expected %d", table[i].config, rope.pairs, table[i].pairs);
        double want = pow(table[i].theta, -1.0 / rope.pairs); /* of the second pair */
        if (fabs(rope.inv_freq[1] - want) > 1e-6 * want)
            fail_msg("%s: the second frequency is %.9g, expected %.9g", table[i].config, rope.inv_freq[1], want);
        pm_arena_free(&arena);
        json_decref(config.root);
    }
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *config, *word;
        pm_status status;
    } table[] = {
        {"{\"rope_parameters\": {\"rope_theta\": 1e4, \"sliding_attention\": {\"rope_theta\": 1e6}}}",
         "rope_parameters.sliding_attention", PM_ERR_UNSUPPORTED},
        {"{\"rope_scaling\": {\"full_attention\": {\"type\": \"default\"}}}", "rope_scaling.full_attention",
         PM_ERR_UNSUPPORTED},
        {"{\"rope_parameters\": \"default\"}", "rope_parameters is not an object", PM_ERR_FORMAT},
        {"{\"rope_theta\": \"x\"}", "rope_theta", PM_ERR_FORMAT},
        {"{\"rope_theta\": 0}", "rope_theta", PM_ERR_FORMAT},
        {"{\"rope_theta\": 1e4, \"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2}}", "dynamic",
         PM_ERR_UNSUPPORTED},
        {"{\"rope_theta\": 1e4, \"rope_scaling\": {\"type\": \"linear\"}}", "factor is missing", PM_ERR_FORMAT},
        {"{\"rope_theta\": 1e4, \"rope_scaling\": {\"type\": \"linear\", \"factor\": -1}}", "rope_scaling.factor",
         PM_ERR_FORMAT},
        {"{\"rope_theta\": 1, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, "
         "\"original_max_position_embeddings\": 64}}",
         "rope_theta of 1", PM_ERR_FORMAT},
        {"{\"rope_theta\": 1e4, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, \"mscale\": -0.5, "
         "\"original_max_position_embeddings\": 64}}",
         "rope_scaling.mscale must be a number not below 0", PM_ERR_FORMAT},
        {"{\"rope_theta\": 1e4, \"original_max_position_embeddings\": 32, \"rope_scaling\": {\"type\": \"yarn\", "
         "\"factor\": 4, \"original_max_position_embeddings\": 64}}",
         "original_max_position_embeddings is 32", PM_ERR_FORMAT},
        {"{\"rope_parameters\": {\"rope_theta\": 1e4}, \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}}",
         "rope_scaling.type is not what rope_parameters says", PM_ERR_FORMAT},
        {"{\"rope_theta\": 1e4, \"partial_rotary_factor\": 1.5}", "partial_rotary_factor", PM_ERR_FORMAT},
        {"{\"rope_theta\": 1e4, \"partial_rotary_factor\": 0.01}", "partial_rotary_factor", PM_ERR_FORMAT},
    };
    for (size_t i = 0; i < PM_COUNT(table); i++) {
        pm_config config = wrap(json_loads(table[i].config, 0, NULL));
        pm_arena arena = {0};
        pm_rope rope;
        pm_error err = {0};
        int status = pm_rope_read(&config, 64, 1.0, 0, &arena, &rope, &err);
        if (status != (int)table[i].status || !strstr(err.message, table[i].word))
            fail_msg("%s: status %d, \"%s\"; expected %d with \"%s\"", table[i].config, status, err.message,
                     table[i].status, table[i].word);
        pm_arena_free(&arena);
        json_decref(config.root);
    }
}

/* YaRN's truncate: left out it is true; null is Python's None, which counts as false. */
static void test_truncate(void **state)
{
    (void)state;
    static const char *const said[] = {"", ", \"truncate\": true", ", \"truncate\": false", ", \"truncate\": null"};
    static const char *const objects[] = {"rope_parameters", "rope_scaling"};
    for (size_t o = 0; o < PM_COUNT(objects); o++) {
        float blended[PM_COUNT(said)];
        for (size_t i = 0; i < PM_COUNT(said); i++) {
            char text[256];
            pm_arena arena = {0};
            pm_rope rope;
            pm_error err;
            snprintf(text, sizeof(text),
                     "{\"rope_theta\": 1e4, \"%s\": {\"rope_type\": \"yarn\", \"factor\": 40, "
                     "\"original_max_position_embeddings\": 4096%s}}",
                     objects[o], said[i]);
            pm_config config = wrap(json_loads(text, 0, NULL));
            if (pm_rope_read(&config, 64, 1.0, 0, &arena, &rope, &err) != PM_OK)
                fail_msg("%s: %s", text, err.message);
            blended[i] = rope.inv_freq[14];
            pm_arena_free(&arena);
            json_decref(config.root);
        }
        assert_true(blended[0] == blended[1] && blended[2] == blended[3]);
        assert_true(blended[0] != blended[2]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_goldens), cmocka_unit_test(test_left_out),
                                       cmocka_unit_test(test_truncate), cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
